#!/usr/bin/env python3
"""Holds the NumPy reference against model folders' samples.json (values computed by PyTorch).

    check_reference.py [DIR...]     default: every tests/data/plans/plan-* and deploy/demo_model

Prints the largest differences of each folder; exits 1 if any sample of any folder is outside its tolerance.
"""

import json
import math
import os
import sys

import numpy as np

from koine_reference import Model

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOLERANCE = 1e-4
# The demo's stored values were computed in f32 (and rounded to six decimals).
DEMO_LOGIT_TOLERANCE = 1e-3


def check_sample(model, sample, logit_tolerance):
    """{what: (difference, allowed)} of one sample; greedy ids count as 0 or infinity."""
    memory = model.encode(sample.get("source"), sample["source_ids"], sample.get("source_adapter"))
    results = {}

    def hold(what, difference, allowed):
        # Not a number is outside every tolerance.
        difference = math.inf if math.isnan(difference) else difference
        if what not in results or difference / allowed > results[what][0] / results[what][1]:
            results[what] = (difference, allowed)

    hold("encoder_last_row", np.abs(memory[-1] - sample["encoder_last_row"]).max(), TOLERANCE)
    hold("embedding", np.abs(model.embed(memory) - sample["embedding"]).max(), TOLERANCE)
    if "decoder_ids" in sample:
        target, adapter = sample.get("target"), sample.get("target_adapter")
        logits = model.decode(target, memory, sample["decoder_ids"], adapter)
        if not len(logits) == len(sample["logits_sum"]) == len(sample["logits_top4"]):
            hold("steps", math.inf, 1)
        for step, row in enumerate(logits):
            expected = sample["logits_sum"][step]
            allowed = TOLERANCE * math.sqrt(len(row)) + 1e-6 * abs(expected)
            hold("logits_sum", abs(row.sum() - expected), allowed)
            for token, value in sample["logits_top4"][step]:
                hold("logits_top4", abs(row[token] - value), logit_tolerance)
        if "greedy_ids" in sample:
            ids, _ = model.greedy(target, memory, sample["greedy_ids"][0], sample["max_steps"], adapter)
            hold("greedy_ids", 0.0 if ids == sample["greedy_ids"] else math.inf, 1)
    return results


def check_folder(directory):
    """The faults of one folder, as text; prints its largest differences."""
    model = Model.load(directory)
    demo = os.path.basename(os.path.normpath(directory)) == "demo_model"
    faults, worst = [], {}
    path = os.path.join(directory, "samples.json")
    with open(path, encoding="utf-8") as opened:
        samples = json.load(opened)
    for index, sample in enumerate(samples):
        results = check_sample(model, sample, DEMO_LOGIT_TOLERANCE if demo else TOLERANCE)
        for what, (difference, allowed) in results.items():
            worst[what] = max(worst.get(what, 0.0), difference)
            if not difference <= allowed:
                faults.append(
                    f"{path}: sample {index} ({sample.get('source', '')} -> {sample.get('target', '')}): "
                    f"{what} differs by {difference:.3g}, allowed {allowed:.3g}"
                )
    if not samples:
        faults.append(f"{directory}: no samples")
    differences = ", ".join(f"{what} {difference:.2g}" for what, difference in worst.items())
    print(f"{'FAIL' if faults else 'ok  '} {directory}: {len(samples)} samples; largest differences: {differences}")
    return faults


def main(arguments):
    directories = arguments
    if not directories:
        plans = os.path.join(ROOT, "tests", "data", "plans")
        directories = [os.path.join(plans, name) for name in sorted(os.listdir(plans)) if name.startswith("plan-")]
        directories.append(os.path.join(ROOT, "deploy", "demo_model"))
    faults = [fault for directory in directories for fault in check_folder(directory)]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(directories)} folders, {len(faults)} faults")
    return 1 if faults or not directories else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
