"""The part of the package that is written in Rust."""

from collections.abc import Iterable
from os import PathLike
from typing import Any, Literal

import numpy
from numpy.typing import DTypeLike, NDArray

class Error(Exception):
    """What went wrong, as a sentence."""

    code: int
    name: str
    cause: str | None
    path: list[int] | tuple[()]

class Identity:
    job: str
    program: str
    rank: int
    size: int
    unit: int
    units: int

class Fabric:
    """This process as a member of a domain. It leaves when this object is closed, and the last
    :class:`Segment`, :class:`Remote`, :class:`Mobile` and :class:`Future` is gone; arrays keep
    their memory only. Any thread may use it."""

    @property
    def identity(self) -> Identity: ...
    @property
    def unit(self) -> int:
        """The number of this unit in its job, from 0."""
    @property
    def units(self) -> int:
        """The number of units of the job."""
    @property
    def domain(self) -> str | None:
        """The name of the domain; None in a domain of one process."""
    deadline: float
    """How long a wait takes at most, in seconds, unless it has a timeout of its own."""

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until all units of the job are here. Collective."""
    def progress(self) -> int:
        """Takes what has arrived, and runs what others call here. Does not wait."""
    def allocate(self, bytes: int) -> Segment:
        """Allocates zeroed shared memory. Local."""
    def attach(self, key: bytes) -> Remote:
        """Prepares access to a segment of any process. Local on one node."""
    def send(self, unit: int, data: Any, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends a message: bytes, an array or another buffer. Returns when it may be changed."""
    def recv(
        self, unit: int | None = None, tag: int = 0, *, timeout: float | None = None
    ) -> bytes:
        """Receives a message of a unit, or of any, with this tag."""
    def recv_from(
        self, tag: int = 0, *, timeout: float | None = None
    ) -> tuple[int | None, bytes]:
        """Receives a message of any unit with this tag; returns the unit and the bytes. The unit is
        None if the sender is not of this job, or is a former life of a unit that was started
        again."""
    def close(self) -> None: ...
    def __enter__(self) -> Fabric: ...
    def __exit__(self, *raised: object) -> None: ...

def init() -> Fabric:
    """Joins the domain and job that `samite run` says. Without it, the process is a domain of one.
    Once per process."""

def join(domain: str) -> Fabric:
    """Joins the running domain of this name (`samite agent --domain NAME`)."""

def alone(name: str = "python") -> Fabric:
    """Creates a domain of this process only, for experiments at the prompt."""

class Segment:
    """Shared memory of this process."""

    @property
    def key(self) -> bytes:
        """24 bytes by which others attach to it: send them in a message."""
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def array(
        self,
        dtype: DTypeLike | None = None,
        shape: int | tuple[int, ...] | None = None,
        *,
        offset: int = 0,
    ) -> NDArray[Any]:
        """Returns the memory as an array, without a copy; by default the whole of it, as bytes.

        The array keeps the memory, also when the segment was freed. Others may write it at any
        time: what they write meanwhile is seen in parts. Order accesses by barriers, messages or
        calls."""
    def free(self) -> None:
        """Frees the segment. Its memory is reused when nobody is attached to it, and no array over
        it is left."""

class Remote:
    """Memory of any process, reached by its key."""

    @property
    def key(self) -> bytes: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    @property
    def is_mapped(self) -> bool:
        """Whether its memory is on this node, so that `array` works."""
    def array(
        self,
        dtype: DTypeLike | None = None,
        shape: int | tuple[int, ...] | None = None,
        *,
        offset: int = 0,
    ) -> NDArray[Any]:
        """As :meth:`Segment.array`."""
    def get(self, offset: int, bytes: int) -> bytes: ...
    def put(self, offset: int, data: Any) -> None: ...
    def fetch_add(self, offset: int, value: int) -> int:
        """Adds to an aligned word of 8 bytes, atomically; returns what was there."""
    def compare_exchange(self, offset: int, expected: int, new: int) -> int:
        """Replaces a word if it is `expected`, atomically; returns what was there."""

class Capsule:
    """Code in one or several forms, named by its hash."""

    def __init__(
        self,
        entries: Iterable[str],
        *,
        wasm: bytes | None = None,
        bitcode: dict[Literal["x86-64", "aarch64"], bytes] | None = None,
    ) -> None: ...
    @staticmethod
    def from_wat(text: str) -> Capsule: ...
    @staticmethod
    def decode(data: Any) -> Capsule:
        """Reads a capsule, such as a file that `samite capsule build` has written."""
    def __bytes__(self) -> bytes: ...
    @property
    def hash(self) -> str: ...
    @property
    def entries(self) -> list[str]: ...

class Code:
    """Code that a unit has registered."""

    @property
    def hash(self) -> str: ...
    @property
    def capsule(self) -> Capsule: ...

class Mobile:
    def __init__(self, fabric: Fabric) -> None: ...
    @property
    def units(self) -> int: ...
    def register(self, capsule: Capsule) -> Code: ...
    def grant(self, grant: int, segment: Segment, rights: Literal["read", "write"]) -> None:
        """Lets kernels use a segment of this unit under a number from 0 to 15."""
    def revoke(self, grant: int) -> None: ...
    def set_policy(
        self,
        trust: Literal["nothing", "signed-wasm", "wasm", "listed-native", "everything"],
        keys: list[bytes | str] = ...,
        hashes: list[bytes | str] = ...,
        run_max: float = 1.0,
        llvm: str | PathLike[str] | None = None,
    ) -> None:
        """Says which code this unit runs; by default "wasm"."""
    def serve(self, timeout: float | None = None) -> None:
        """Runs what others call, for so many seconds, or until Ctrl-C."""
    def counters(self) -> dict[str, int]:
        """Returns what this unit has done for moved code since it began, by name."""
    def take_failures(self) -> list[Error]:
        """Returns how calls failed for which nobody waits, each once: the newest 64."""
