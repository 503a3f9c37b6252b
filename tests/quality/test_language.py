"""The library's quality on the labelled set does not get worse than what the documentation says."""

from benchmarks.quality.language import labelled, measure, score


async def test_the_set_is_large_and_many_sided():
    texts = labelled()
    assert len(texts) >= 120
    assert len({text.language for text in texts if text.language}) >= 20
    assert len({text.text for text in texts}) == len(texts)


async def test_accuracy():
    texts, found, _ = await measure()
    by_kind = {}
    for kind in ("short", "long", "none"):
        chosen = [at for at, text in enumerate(texts) if text.kind == kind]
        by_kind[kind] = score([texts[at] for at in chosen], [found[at] for at in chosen], 0.7)
    assert by_kind["long"].right == by_kind["long"].texts
    assert by_kind["short"].right / by_kind["short"].texts >= 0.93
    assert sum(each.wrong for each in by_kind.values()) == 0
    assert by_kind["none"].told == 0
