"""What passed, what differed, and the numbers; details of every difference go to a file."""

from pathlib import Path

from compare import excerpt, show


class Report:
    """Counts per phase. A case passes when nothing in it differs."""

    def __init__(self, out: Path):
        self.details, self.passed, self.failed = (out / "differences.txt").open("w"), 0, 0
        self.numbers: dict = {"differences": []}
        self.phase = ""

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.numbers[phase] = {"passed": 0, "failed": 0}
        print(f"\n== {phase}")

    def number(self, name: str, value) -> None:
        if isinstance(value, float):
            value = round(value, 3)
        (self.numbers.get(self.phase) or self.numbers)[name] = value
        print(f"   {name}: {value}")

    def case(self, name: str, found: list[tuple[str, object, object]], sides: tuple[str, str]) -> bool:
        """One case: `found` holds (what, left, right) of everything that differs, `sides` says what left and right are."""
        self.numbers[self.phase]["failed" if found else "passed"] += 1
        self.failed, self.passed = self.failed + bool(found), self.passed + (not found)
        if found:
            print(f"   DIFFERS {name}: {', '.join(what for what, _, _ in found)}")
            self.numbers["differences"].append({"phase": self.phase, "case": name, "what": [what for what, _, _ in found]})
        for what, left, right in found:
            for side, text in zip(sides, excerpt(left, right)):
                print(f"      {what}, {side + ':':10} {text}")
            self.details.write(f"#### {self.phase} | {name} | {what}\n")
            for side, value in zip(sides, (left, right)):
                lines = value if isinstance(value, list) else [value]
                self.details.write(f"-- {side}\n" + "".join(show(line).rstrip("\n") + "\n" for line in lines))
        self.details.flush()
        return not found

    def aside(self, name: str, reason: str) -> None:
        """A case that cannot be compared, and why."""
        self.numbers[self.phase].setdefault("not comparable", []).append({"case": name, "reason": reason})
        print(f"   not comparable: {name}: {reason}")

    def conclude(self) -> int:
        print(f"\nfidelity: {self.passed} passed, {self.failed} failed")
        return 1 if self.failed else 0
