# SPDX-License-Identifier: Apache-2.0
"""The plans of one model: one rung per input size, and per way that its control flow takes.

    ladder.wants(key)                   # should this step be captured?
    ladder.expect_others()              # several kinds of step came before the first capture
    rung = ladder.pick(key)             # the rung whose plan this step runs under, or None
    ladder.after(rung, matched, ...)    # how it went

Rungs of one *kind* take inputs of the same data types and ranks, under the same autocast. A step
runs under the smallest rung that *covers* its input, at least as large in every dimension (among
several ranks, in all): a batch that is cut short runs under the plan of a full one. An input that
none covers is captured, up to MAX_RUNGS times; when two sizes of one program are known, the rung of
a size half as large again is fitted and asked for ahead of time.

The peak of a plan says nothing about an input that it does not cover: if the rung of that input is
still being planned, the step waits for it (planning.py). If no plan will come, the step runs under
the plan of the largest input of its kind, which saves memory, with no bound on how much remains. A
step of another kind runs without a plan.

Steps of one size that are different programs are *variants*. Which one comes cannot be known before
it runs: the guess is the one that followed the last one last time. A wrong guess costs memory in
that step, never a bit (the tape disarms). Where the data decides which comes, as in a forward that
ends early, guesses are wrong again and again. So where guesses have led to more steps above the
budget than the plan of the largest variant has, that one is taken: a smaller variant that leaves it
has discarded enough by then. Where all steps leave it in the same way, they are guessed again.

Everything is decided from what is here: no call to the server inside a step.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from reprise.torch.capture.fitted import fitted
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.ladder.rung import Key, Rung

MAX_RUNGS = 8
MAX_CAPTURES = 16
# After so many, or two more than twice the ways that were found, more do not help.
MANY_CAPTURES = 8
# A program that differs this many steps since the last capture is captured again; after each such
# capture but the first twice as many are needed, until a plan of one of them is followed, so that a
# program that never settles is captured ever more rarely.
MISMATCHES_BEFORE_CAPTURE = 3
# So many steps in a row as captured: it has settled, and its next change is a first one again.
SETTLED = 64
# So many in a row that leave the largest variant's plan in the same way: it does not come any more.
FOR_GOOD = 256
# Steps that are captured to see another kind.
LOOKED_AT = 2
# Mostly other programs than those captured, and above the budget, over so many steps: planning
# makes no sense.
WATCHED_STEPS = 24
# A much smaller input than its rung's is worth a rung of its own when it comes this often.
SMALL, OFTEN = 0.6, 5
AHEAD = 1.5
_UNKNOWN = "?"  # added to the structure before: a step that is none of those known came after it
_UNKNOWN_IN_A_ROW = 8  # so many are told apart by how many came since a known one


@dataclass(slots=True)
class Ladder:
    """The plans of one model, by input size."""

    rungs: list[Rung] = field(default_factory=list)
    captures: int = 0
    next_number: int = 1  # of the rung that comes next
    _own: int = 0  # numbers below it, of rungs that only this rank has
    _step: int = 0
    _mismatches: int = 0  # since the last capture, of a program that no rung knows
    _in_a_row: int = 0
    # Captures that came upon a program that is known: the next one comes so many steps later, or
    # two ways that alternate would never be captured both.
    _wasted: int = 0
    _waits: int = 0
    _recent: deque[bool] = field(default_factory=lambda: deque(maxlen=WATCHED_STEPS))
    _kinds: bool = False  # they take turns: what follows the first time is not known
    _others: int = 0  # of the next steps, so many are captured until one is of another kind
    _stale: Rung | None = None  # its step is to be captured again
    _matched: int = 0  # steps in a row
    # Captures of programs that no rung knew, since a step followed a plan for the first time.
    _again: int = 0
    _too_large: list[Key] = field(default_factory=list)
    _small: Counter[Key] = field(default_factory=Counter)
    _last: str = ""  # structure of the step before
    _follows: dict[str, str] = field(default_factory=dict)
    # Steps above the budget in a program with variants, by whether they ran under the plan of the
    # largest one or of the one that was guessed.
    _above: Counter[bool] = field(default_factory=Counter)
    takes_largest: bool = False
    _where: str = ""  # in what the last step differed that was not as captured
    _alike: int = 0  # such steps in a row that differ in that

    # ---- Growing ----------------------------------------------------------------

    def add(
        self,
        key: Key,
        graph: CapturedGraph,
        left_out: frozenset[str],
        leaks: bool = False,
        uneven: bool = False,
        *,
        own_size: int | None = None,
    ) -> Rung | None:
        """Adds the rung of a captured step and returns it; returns None if it is there already.
        `own_size`: of this rank's input, if all ranks have captured the step. The rung is then for
        the largest of their inputs, and the same on each of them, as is the one that is removed for
        it."""
        self.captures += 1
        self._mismatches = self._in_a_row = 0
        self._saw(graph.structure)
        stale, self._stale = self._stale, None
        for rung in tuple(self.rungs):
            same = rung.key == key and rung.graph.structure == graph.structure
            if same and rung is stale:
                self.rungs.remove(rung)
            elif same and not rung.fitted:
                self._wasted += 1
                return None
        if any(rung.graph.structure != graph.structure for rung in self.rungs):
            self._others = 0
        self._known_better(key)
        shared = own_size is not None
        if shared and len(self.captured) >= MAX_RUNGS:
            self.rungs.remove(next(rung for rung in self.captured if rung.fitted))
        size = key.size if own_size is None else own_size
        made = Rung(self.next_number, key, key.size, graph, left_out, leaks, size, shared)
        made.uneven = uneven
        made.recaptured = stale is not None and stale.key == key
        return self._append(made)

    def has(self, key: Key, structure: str) -> bool:
        """Returns whether there is a rung of a captured step with this input and these ops."""
        return any(
            r.key == key and r.graph.structure == structure and not r.fitted for r in self.rungs
        )

    def wasted(self) -> None:
        """Notes a capture that came upon a step that has a rung."""
        self.captures += 1
        self._wasted += 1
        self._mismatches = self._in_a_row = 0

    def sketched(self, key: Key, graph: CapturedGraph) -> Rung:
        """Adds the rung of a step of which only the shapes are known, and returns it. It stays
        until one that was captured has a plan."""
        number = self._own_number()
        rung = Rung(number, key, key.size, graph, frozenset(), leaks=True, fitted=True, sketch=True)
        self.rungs.append(rung)
        return rung

    def _own_number(self) -> int:
        """Returns the number of a rung that other ranks do not have: they number what they have
        captured alike."""
        self._own -= 1
        return self._own

    def beside(self, rung: Rung, beside: int) -> Rung:
        """Returns a rung of the same step, not in the ladder, that is to have a plan with room for
        so many bytes beside it."""
        made = Rung(self._own_number(), rung.key, rung.size, rung.graph, rung.left_out, rung.leaks)
        made.own_size, made.shared, made.uneven = rung.own_size, rung.shared, rung.uneven
        made.foreseen, made.terms = rung.foreseen, rung.terms
        made.held_bytes, made.spare_bytes = beside, rung.spare_bytes + beside
        return made

    def sketch_for(self, key: Key) -> Rung | None:
        """Returns the rung with a plan from shapes for this input that a step has kept to; None if
        there is none."""
        found = [r for r in self.rungs if r.sketch and r.tape and r.matched and r.covers(key)]
        return min(found, key=lambda rung: rung.size, default=None)

    def keep(self, sketch: Rung) -> None:
        """Makes a rung of which only the shapes are known one that stays."""
        sketch.sketch, sketch.number = False, self.next_number
        self.next_number += 1

    @property
    def captured(self) -> list[Rung]:
        """The rungs of steps that were captured, or fitted from such; on all ranks the same."""
        return [rung for rung in self.rungs if not rung.sketch]

    def ahead(self, rung: Rung) -> tuple[int, dict[str, Any]] | None:
        """Returns a larger size and its graph, fitted from those of this rung's program; None if
        that cannot be done, or was."""
        points: dict[int, CapturedGraph] = {}
        for r in self._of_program(rung):
            known = points.setdefault(r.own_size, r.graph)
            if [s.bytes for s in known.storages] != [s.bytes for s in r.graph.storages]:
                return None  # another shape of as many elements: they do not say what it needs
        key = self._ahead(rung)
        size = int(max(points) * AHEAD) if rung.shared else 0 if key is None else key.size
        if not size or any(r.fitted and r.size >= size for r in self.rungs):
            return None
        message = fitted(list(points.items()), size)
        return None if message is None else (size, message)

    def fit(self, rung: Rung, size: int, message: dict[str, Any] | None) -> Rung:
        """Adds the rung of a size that is fitted, with its graph where this rank has it, and
        returns it."""
        graph = self.largest(rung).graph
        key = self._ahead(rung) or rung.key
        made = Rung(self.next_number, key, size, graph, rung.left_out, rung.leaks)
        made.shared, made.terms = rung.shared, rung.terms
        made.fitted, made.beside_bytes = True, rung.beside_bytes
        made.foreseen = message
        made.sizes = {s["id"]: s["bytes"] for s in (message or {}).get("storages", ())}
        return self._append(made)

    def largest(self, rung: Rung) -> Rung:
        """Returns the captured rung of a rung's program with the largest input here."""
        return max(self._of_program(rung), key=lambda r: r.own_size)

    @property
    def room(self) -> bool:
        """Whether there is room for one more rung that is captured."""
        return sum(not rung.fitted for rung in self.rungs) < MAX_RUNGS

    def _of_program(self, rung: Rung) -> list[Rung]:
        return [
            r for r in self.rungs
            if not r.fitted and r.key.kind == rung.key.kind
            and r.graph.structure == rung.graph.structure
        ]  # fmt: skip

    def _ahead(self, rung: Rung) -> Key | None:
        """Returns the key of an input half as large again as the largest of its program, along the
        way from each to the next; None if there is a single one, if they are ways apart, or of
        several ranks."""
        keys = [r.key for r in sorted(self._of_program(rung), key=lambda r: r.size)]
        if rung.shared or len(keys) < 2 or any(not a.within(b) for a, b in pairwise(keys)):
            return None
        shapes = []
        for small, large in zip(keys[0].shapes, keys[-1].shapes, strict=True):
            grew = [mine < its for mine, its in zip(small, large, strict=True)]
            by = AHEAD ** (1 / max(1, sum(grew)))
            shapes.append(tuple(int(n * by) if g else n for n, g in zip(large, grew, strict=True)))
        return Key(keys[-1].kind, tuple(shapes))

    def _known_better(self, key: Key) -> None:
        """Removes what was fitted for sizes up to this one."""
        self.rungs = [
            r for r in self.rungs
            if not (r.fitted and not r.sketch and r.key.kind == key.kind and r.size <= key.size
                    and (r.shared or r.key.within(key)))
        ]  # fmt: skip

    def _append(self, rung: Rung) -> Rung:
        self.next_number += 1
        if len(self.captured) >= MAX_RUNGS:
            self.rungs.remove(min(self.captured, key=lambda r: r.used))
        self.rungs.append(rung)
        return rung

    # ---- Before a step ------------------------------------------------------------

    def is_settled(self, key: Key) -> bool:
        """Returns whether there is nothing to be captured for this input, and nothing to be noted
        for later: it is that of the only rung, and the last step was as captured."""
        rungs = self.rungs
        if len(rungs) != 1 or rungs[0].key != key or rungs[0].sketch or self._stale is not None:
            return False
        return not (self._others or self._mismatches or self._in_a_row)

    def wants(self, key: Key) -> bool:
        """Returns whether a step with this input should be captured."""
        too_large = self._too_large and any(k.within(key) for k in self._too_large)
        if self.captures >= MAX_CAPTURES or too_large:
            return False
        if self.rungs and self.rungs[-1].sketch and not self.captured:
            return False  # the start says when (recovery/startup.py)
        kin = [rung for rung in self.rungs if rung.key.kind == key.kind]
        if not kin or self.is_stale(key):
            return True
        if self._others:
            self._others -= 1
            return True
        in_a_row = 0 if self.takes_largest else self._in_a_row
        if max(self._mismatches, in_a_row) >= self._patience:
            return self._wants_unknown(kin)
        # Where steps have several micro-batches, the plan of a single one covers none of them.
        if uneven := max((rung.size for rung in kin if rung.uneven), default=0):
            return key.size >= AHEAD * uneven
        least = min((rung.size for rung in kin if rung.covers(key)), default=None)
        if least is None:
            return True
        if key.size < SMALL * least:
            self._small[key] += 1
            return self._small[key] == OFTEN
        return False

    @property
    def _patience(self) -> int:
        """Returns how many mismatches must come before the next capture."""
        return MISMATCHES_BEFORE_CAPTURE << max(0, self._again - 1)

    def _wants_unknown(self, kin: list[Rung]) -> bool:
        """Returns whether this step is captured, where a program that no rung knows comes now and
        then. It is if the steps follow each other as before; where that says nothing, some step
        soon is."""
        self._waits += 1
        known = {rung.graph.structure for rung in kin}
        expected = self._follows.get(self._last, self._last)
        if expected in known and self._waits <= 1 + self._wasted % 4:
            return False
        self._waits = 0
        self._again += 1
        return True

    def expect_others(self) -> None:
        """Notes that steps of more kinds came before the first capture than it has shown: the next
        ones are captured."""
        self._others, self._kinds = LOOKED_AT, True

    def stale(self, rung: Rung) -> None:
        """Notes that a step of this kind needs more than its graph says, by what the program does
        beside the model's forward: the next one is captured."""
        self._stale = rung

    def is_stale(self, key: Key) -> bool:
        """Returns whether a step with this input is captured again because it needs more now."""
        return self._stale is not None and self._stale.key == key

    def too_large(self, key: Key) -> None:
        """Notes an input whose capture ran out of memory: neither it nor a larger one is
        captured."""
        self._too_large.append(key)

    def lacks(self, key: Key) -> list[Rung]:
        """Returns the rungs that would cover this input once they have a plan, where none that has
        one does."""
        waiting = [r for r in self.rungs if r.tape is None and r.open]
        if not waiting or any(r.tape is not None and r.covers(key) for r in self.rungs):
            return []
        return [r for r in waiting if r.covers(key)]

    def pick(self, key: Key) -> Rung | None:
        """Returns the rung that this step runs under; None if there is none."""
        self._step += 1
        ready = [r for r in self.rungs if r.tape is not None and r.key.kind == key.kind]
        if not ready:
            return None
        above = self._above
        self.takes_largest = bool(above) and above[False] > above[True]
        found = ready[0] if len(ready) == 1 else self._best_of(ready, key)
        found.used = self._step
        return found

    def _best_of(self, ready: list[Rung], key: Key) -> Rung:
        """Returns the one of several rungs, each with a plan, that a step runs under."""
        expected = self._follows.get(self._last, self._last)
        uneven = [rung for rung in ready if rung.uneven]
        if self.takes_largest or (self._kinds and self._last not in self._follows):
            expected = max(ready, key=lambda rung: rung.graph.measured_peak_bytes).graph.structure
        elif len(own := {rung.graph.structure for rung in ready if rung.key == key}) == 1:
            (expected,) = own  # as where a loop runs over a sequence: its length says which one
        ready = [rung for rung in ready if rung.graph.structure == expected] or ready
        covering = [rung for rung in ready if rung.covers(key)]
        if uneven:
            # What comes is not known: as many micro-batches as ever, each as large as any.
            found = max(uneven, key=lambda rung: (rung.forwards, rung.size))
            if covering and not found.covers(key):
                return max(covering, key=lambda rung: rung.size)
            return found
        if covering:
            return min(covering, key=lambda rung: rung.size)
        return max(ready, key=lambda rung: rung.size)

    # ---- After it -------------------------------------------------------------------

    def after(
        self,
        rung: Rung,
        matched: bool,
        above: bool = False,
        may_be_larger: bool = False,
        where: str = "",
    ) -> None:
        """Notes that a step has run under a rung. `matched`: it was as captured, as far as is
        known; `above`: it peaked above the budget; `may_be_larger`: it did more, or may have;
        `where`: in what it differed."""
        if above and self.takes_largest and may_be_larger:
            self._others = LOOKED_AT  # of a variant that is larger than those known
        elif above and (not matched or self._variants(rung)):
            self._above[self.takes_largest] += 1
        self._recent.append(matched or not above)
        if matched:
            self._in_a_row = self._alike = 0
            self._matched += 1
            if self._matched == SETTLED or not rung.matched:
                self._again = 0  # captures help
            rung.matched = True
            self._saw(rung.graph.structure)
        else:
            self._mismatches += above or not self.takes_largest
            self._in_a_row += 1
            self._alike = self._alike + 1 if where == self._where else 1
            self._where = where
            if self._alike == FOR_GOOD:
                self._above.clear()  # another program came for good
            self._matched = 0
            # Not what was expected: of two known ways, it was the other one, unless there is a
            # third: so it counts as unknown all the same.
            others = self._variants(rung)
            self._saw(others.pop() if len(others) == 1 else self._unknown())

    def is_largest(self, rung: Rung) -> bool:
        """Returns whether a step ran under this rung as the largest of several programs."""
        return self.takes_largest and bool(self._variants(rung))

    def _variants(self, rung: Rung) -> set[str]:
        """Returns the structures of the other programs that take inputs of the rung's kind."""
        kin = (r.graph.structure for r in self.rungs if r.key.kind == rung.key.kind)
        return {structure for structure in kin if structure != rung.graph.structure}

    def _unknown(self) -> str:
        """Returns what stands for the structure of a step that no rung knows, in the order of
        steps."""
        known = self._last.rstrip(_UNKNOWN)
        many = len(self._last) - len(known)
        return known + _UNKNOWN * min(many + 1, _UNKNOWN_IN_A_ROW)

    def _saw(self, structure: str) -> None:
        if self._last:
            self._follows[self._last] = structure
        self._last = structure

    @property
    def hopeless(self) -> bool:
        """Whether the steps are mostly other programs that exceed the budget, and no more captures
        help."""
        recent = self._recent
        if len(recent) < WATCHED_STEPS or sum(recent) * 2 >= WATCHED_STEPS:
            return False
        ways = len({rung.graph.structure for rung in self.rungs})
        enough = min(MANY_CAPTURES, 2 * ways + 2) if not self._above else MAX_CAPTURES
        return self.captures >= enough
