from procession_schemas.nearest import nearest


def test_the_known_name_that_is_most_like_one_is_meant_whatever_its_case():
    assert nearest("temprature", ["topP", "temperature"]) == "temperature"
    assert nearest("TEMPERATURE", ["topP", "temperature"]) == "temperature"
    assert nearest("Model", iter(["Model", "model"])) == "Model"


def test_of_names_that_are_like_none_nobody_is_meant():
    assert nearest("zzz", ["topP", "temperature"]) is None
    assert nearest("", []) is None


def test_of_a_long_name_only_the_beginning_is_compared():
    assert nearest("temperature" + 1_000_000 * "e", ["topP", "temperature"]) is None
    assert nearest(f"{'a' * 40}{'b' * 1_000}", ["a" * 40]) == "a" * 40
