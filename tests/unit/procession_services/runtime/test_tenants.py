import pytest

from procession_services.runtime.check import check
from procession_services.runtime.problems import ConfigurationError
from procession_services.runtime.settings import Settings
from procession_services.runtime.tenants import Limits, Tenants, load_tenants


@pytest.fixture
def load(tmp_path):
    def loaded(text):
        file = tmp_path / "tenants.yaml"
        file.write_text(text)
        return load_tenants(file)

    return loaded


@pytest.fixture
def told(load, tmp_path):
    def problems(text):
        with pytest.raises(ConfigurationError) as raised:
            load(text)
        assert {problem.where for problem in raised.value.problems} == {str(tmp_path / "tenants.yaml")}
        return [(problem.path, problem.message) for problem in raised.value.problems]

    return problems


def test_without_a_file_a_tenant_is_bounded_by_its_queue_alone():
    assert Tenants().of("anybody") == Limits(waiting_runs=1000)


def test_a_tenant_has_its_own_limits_and_else_those_of_everybody(load):
    tenants = load(
        "default: {concurrentRuns: 5, requestsPerSecond: 2}\n"
        "tenants: {acme: {concurrent_runs: 9, costPerDay: 1.5}, free: {concurrentRuns: null}, same: }"
    )
    assert tenants.of("nobody") == Limits(concurrent_runs=5, requests_per_second=2)
    assert tenants.of("acme") == Limits(concurrent_runs=9, requests_per_second=2, cost_per_day=1.5)
    assert tenants.of("free") == Limits(requests_per_second=2)
    assert tenants.of("same") == tenants.default


def test_an_empty_file_limits_nobody(load):
    assert load("") == Tenants()


def test_everything_that_is_wrong_is_told_at_once(told):
    assert told(
        "defaults: {}\ndefault: {concurrentRun: 5}\ntenants: {a.b: {}, acme: {requestsPerSecond: 0}, x: 3}\n"
    ) == [
        ("defaults", "unknown key; did you mean 'default'?"),
        ("default.concurrentRun", "unknown limit; did you mean 'concurrentRuns'?"),
        ("tenants.a.b", "tenant 'a.b' must be 1 to 200 letters, digits, '_' or '-'"),
        ("tenants.x", "must be a mapping, not 3"),
    ]


def test_a_wrong_value_is_shown(told):
    assert told("tenants: {acme: {requestsPerSecond: 0}}") == [
        ("tenants.acme.requestsPerSecond", "Input should be greater than 0: 0")
    ]


def test_what_is_no_yaml_is_told_with_its_line(load):
    with pytest.raises(ConfigurationError, match=r"tenants\.yaml:2: is not YAML: "):
        load("default: {}\na: [")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read: No such file or directory$"):
        load_tenants(tmp_path / "none.yaml")


def test_procession_check_tells_what_is_wrong_with_the_limits(tmp_path):
    file = tmp_path / "tenants.yaml"
    file.write_text("default: {waitingRuns: many}")
    problems = check(Settings(tenants=file))
    assert [problem.path for problem in problems if not problem.warning] == ["default.waitingRuns"]
