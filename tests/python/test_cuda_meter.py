"""The CUDA meter on counters that a test sets: what it computes from them, not what a GPU
counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from reprise.base.errors import RepriseError  # noqa: E402
from reprise.torch.meter.cuda_meter import CudaMeter  # noqa: E402
from reprise.torch.meter.room import capacity, room_on  # noqa: E402
from reprise.torch.meter.state import alive_bytes, alive_tensors  # noqa: E402


class Counters:
    """The counters of one device, as the allocator keeps them."""

    def __init__(self) -> None:
        self.now = dict.fromkeys(
            ("requested_bytes", "allocated_bytes", "inactive_split_bytes", "reserved_bytes"), 0
        )
        self.most = dict(self.now)
        self.asked_of: set[int] = set()

    def set(self, **bytes: int) -> None:
        self.now.update(bytes)
        self.most = {name: max(self.most[name], n) for name, n in self.now.items()}

    def nested(self, device: int) -> dict[str, dict[str, dict[str, int]]]:
        self.asked_of.add(device)
        return {n: {"all": {"current": self.now[n], "peak": self.most[n]}} for n in self.now}

    def reset(self, device: int) -> None:
        self.most = dict(self.now)


@pytest.fixture
def counters(monkeypatch):
    made = Counters()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    # torch reads the environment once, whatever a test before this one had there.
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", str, raising=False)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", made.nested)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", made.reset)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    return made


def test_allocations_that_python_does_not_see_are_in_the_base(counters):
    counters.set(requested_bytes=24_000)  # of it 16000 are workspaces without a tensor
    meter = CudaMeter(torch.device("cuda:1"))

    meter.start(8_000)

    assert (meter.live(), meter.peak(), counters.asked_of) == (24_000, 24_000, {1})
    assert (meter.exact, meter.why) == (True, "")


def test_a_peak_covers_the_time_since_its_reset(counters):
    meter = CudaMeter(torch.device("cuda:0"))
    meter.start(0)

    counters.set(requested_bytes=500)
    counters.set(requested_bytes=200)

    assert (meter.live(), meter.peak()) == (200, 500)
    meter.reset_peak()
    assert meter.peak() == 200


def test_rounding_and_fragments_count_as_overhead_but_free_segments_do_not(counters):
    meter = CudaMeter(torch.device("cuda:0"))
    meter.start(0)

    # The peak of a step lies before a reset, as those of a capture do at every op.
    counters.set(
        requested_bytes=1000, allocated_bytes=1024, inactive_split_bytes=300, reserved_bytes=9000
    )
    meter.reset_peak()
    counters.set(requested_bytes=10, allocated_bytes=512, inactive_split_bytes=0)
    meter.reset_peak()

    assert meter.take_beyond() == 324
    counters.set(requested_bytes=10, allocated_bytes=10)
    meter.reset_peak()
    meter.take_beyond()
    assert meter.take_beyond() == 0


def test_free_parts_of_expandable_segments_do_not_count_as_overhead(counters, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    meter = CudaMeter(torch.device("cuda:0"))
    meter.start(0)

    counters.set(
        requested_bytes=1000, allocated_bytes=1024, inactive_split_bytes=300, reserved_bytes=9000
    )

    assert meter.take_beyond() == 24


def test_an_allocator_that_counts_only_blocks_is_not_exact_and_says_so(counters, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    counters.set(allocated_bytes=4096)
    meter = CudaMeter(torch.device("cuda:0"))

    meter.start(0)
    counters.set(allocated_bytes=1 << 24)

    assert (meter.live(), meter.peak(), meter.exact) == (1 << 24, 1 << 24, False)
    assert "cudaMallocAsync does not count the bytes that tensors ask for" in meter.why
    assert meter.blocks() == []


def test_an_allocator_without_counters_is_refused(counters, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")

    with pytest.raises(RepriseError, match=r"its allocator \(pluggable\) is not torch's own"):
        CudaMeter(torch.device("cuda:0"))


class Storage:
    """A storage that looks like one on a GPU."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._cdata = id(self)

    def nbytes(self) -> int:
        return 100


class OnDevice(torch.Tensor):
    place = "cuda:0"

    def untyped_storage(self):
        return Storage(self.place)


class OnOther(OnDevice):
    place = "cuda:1"


@pytest.mark.long
def test_what_is_alive_on_one_gpu_is_not_alive_on_another(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    held = [torch.ones(1).as_subclass(OnDevice), torch.ones(1).as_subclass(OnOther)]

    first, second = torch.device("cuda:0"), torch.device("cuda:1")

    assert [type(t) for t in alive_tensors(first)] == [OnDevice]
    assert [type(t) for t in alive_tensors(second)] == [OnOther]
    assert alive_bytes(torch.device("cuda")) == 100  # the current one
    assert len(held) == 2


@pytest.mark.train
def test_room_on_a_gpu_is_within_the_share_of_the_process_and_without_fragments(
    counters, monkeypatch
):
    reserved = 600
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (400, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    counters.set(allocated_bytes=250, inactive_split_bytes=300)  # and a free segment of 50

    first = torch.device("cuda:0")
    assert (capacity(first), room_on(first).bytes) == (1000, 450)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.8)
    assert (capacity(first), room_on(first).bytes) == (800, 250)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert room_on(first).bytes == 550
