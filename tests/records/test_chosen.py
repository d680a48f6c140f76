"""What a build takes of a partition: by workload, each with a digest of its own."""

import pytest

from mlc_compile.records import NOTHING, Workload, choose


@pytest.fixture
def chosen(record):
    """The best of three workloads, one of them in two spaces."""
    some = [record(n=64), record(2, n=64), record(n=64, space=2), record(n=128), record(n=256)]
    return choose(some)


def test_about_some_workloads_the_others_are_not_there(chosen):
    asked = (Workload.of("gemm", n=64), Workload.of("gemm", n=7))
    told = chosen.about(asked)
    assert [one.space for one in told.records] == [1, 2]
    for workload in asked:
        assert told.find(workload, 1) == chosen.find(workload, 1)
        assert told.outdated(workload, 3) == chosen.outdated(workload, 3)
    assert told.find(Workload.of("gemm", n=128), 1) is None
    assert chosen.about(()) == NOTHING


def test_each_workload_has_its_digest(chosen):
    digests = chosen.digests
    assert set(digests) == {"gemm n=64", "gemm n=128", "gemm n=256"}
    assert len(set(digests.values())) == 3
    assert NOTHING.digests == {}


@pytest.mark.parametrize("space", [1, 2, 3])
def test_a_better_record_in_any_space_changes_the_digest_of_its_workload_alone(
    chosen, record, space
):
    better = choose([*chosen.records, record(0, n=64, space=space, microseconds=1.0)])
    changed = {title for title, digest in better.digests.items() if digest != chosen.digests[title]}
    assert changed == {"gemm n=64"}


def test_workloads_of_one_title_share_a_digest_that_both_change(record):
    """No family makes such; were there one, no record of it would go unseen."""
    one = Workload(family="gemm n=64", facts=())
    other = Workload.of("gemm", n=64)
    assert one.title == other.title
    alone = choose([record(workload=one)]).digests
    both = choose([record(workload=one), record(workload=other)]).digests
    assert list(alone) == list(both)
    assert alone != both
