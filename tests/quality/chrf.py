#!/usr/bin/env python3
"""Greedy chrF2 of the demo model through a running server, beside the values in its results.json.

    chrf.py --server HOST:PORT --koine PATH --model DIR [--tolerance 0.2] [--label f32] [--output DIR]

For each direction of results.json: the first 200 texts of test.jsonl that have both languages go through
`koine translate` (one text a line on standard input, one translation a line back), and sacreBLEU compares them with the
corpus's own translations. Exits 1 if any direction differs from results.json by more than the tolerance.
"""
import argparse
import json
import pathlib
import subprocess
import sys

import sacrebleu

TEXTS = 200  # what results.json was computed on


def read_pairs(path: pathlib.Path, source: str, target: str) -> list[tuple[str, str]]:
    """The first TEXTS (source, target) texts. Raises if a text could not travel as one line."""
    pairs = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            group = json.loads(line)
            if source not in group or target not in group:
                continue
            if "\n" in group[source] or "\r" in group[source]:
                raise ValueError(f"{path}:{number}: a text with a line break cannot be one line of input")
            pairs.append((group[source], group[target]))
            if len(pairs) == TEXTS:
                break
    return pairs


def translate(koine: str, server: str, source: str, target: str, texts: list[str]) -> list[str]:
    command = [koine, "translate", "--server", server, "--from", source, "--to", target]
    done = subprocess.run(command, input="".join(text + "\n" for text in texts), capture_output=True, encoding="utf-8",
                          check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with code {done.returncode}: {done.stderr.strip()}")
    # Not splitlines(): a translation may hold U+2028 and the like, which are no line ends here.
    answers = done.stdout.removesuffix("\n").split("\n")
    if len(answers) != len(texts):
        raise RuntimeError(f"{source}-{target}: {len(texts)} texts sent, {len(answers)} lines came back")
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--koine", required=True, help="path of the koine program")
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=0.2)
    parser.add_argument("--label", default="", help="printed with each line, for example the precision")
    parser.add_argument("--output", type=pathlib.Path, help="folder for the translations")
    arguments = parser.parse_args()

    expected = json.loads((arguments.model / "results.json").read_text(encoding="utf-8"))["directions"]
    print(f"sacreBLEU {sacrebleu.__version__}, greedy")
    worst = 0.0
    print(f"{'':6}{'direction':<12}{'texts':>6}{'chrF2':>8}{'stored':>8}{'differs':>9}")
    for direction, stored in expected.items():
        source, target = direction.split("-")
        pairs = read_pairs(arguments.model / "test.jsonl", source, target)
        if len(pairs) != stored["texts"]:
            raise ValueError(f"{direction}: {len(pairs)} texts found, results.json has {stored['texts']}")
        answers = translate(arguments.koine, arguments.server, source, target, [pair[0] for pair in pairs])
        if arguments.output:
            arguments.output.mkdir(parents=True, exist_ok=True)
            name = f"{arguments.label or 'translations'}-{direction}.txt"
            (arguments.output / name).write_text("".join(answer + "\n" for answer in answers), encoding="utf-8")
        score = sacrebleu.corpus_chrf(answers, [[pair[1] for pair in pairs]]).score
        difference = score - stored["chrF2"]
        worst = max(worst, abs(difference))
        print(f"{arguments.label:6}{direction:<12}{len(pairs):>6}{score:>8.2f}{stored['chrF2']:>8.2f}{difference:>+9.2f}"
              f"{'  zero-shot' if stored['zero_shot'] else ''}", flush=True)
    verdict = "within" if worst <= arguments.tolerance else "NOT within"
    print(f"largest difference {worst:.2f}, {verdict} {arguments.tolerance}")
    return 0 if worst <= arguments.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
