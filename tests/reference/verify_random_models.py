#!/usr/bin/env python3
"""Random models against `koine-model verify`: the C++ forward pass, f32, must answer what the NumPy reference answers.

    verify_random_models.py KOINE_MODEL [--count 60] [--seed 1] [--keep DIR]

Writes the models to a temporary folder (or to DIR, which is kept), verifies each, and exits 1 if any fails. Then alters
one expected value of one model and demands that verify notices, so that a pass means something.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import random_models


def verify(koine_model, directory):
    return subprocess.run(
        [koine_model, "verify", directory], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def notices_an_altered_value(koine_model, directory):
    path = os.path.join(directory, "samples.json")
    with open(path, encoding="utf-8") as file:
        samples = json.load(file)
    samples[1]["logits_top4"][0][3][1] += 3e-4
    with open(path, "w", encoding="utf-8") as file:
        json.dump(samples, file)
    result = verify(koine_model, directory)
    return result.returncode > 0 and "sample 1" in result.stdout


def run(options, folder):
    tokenizers = random_models.find_tokenizers(os.path.join(random_models.ROOT, "tests", "data", "plans"))
    failed, samples = 0, 0
    for index in range(options.count):
        directory = os.path.join(folder, f"model-{index:04d}")
        random_models.make_model(directory, options.seed, index, tokenizers)
        with open(os.path.join(directory, "samples.json"), encoding="utf-8") as file:
            samples += len(json.load(file))
        result = verify(options.koine_model, directory)
        if result.returncode != 0:
            failed += 1
            tail = "\n".join(result.stdout.splitlines()[-8:])
            print(f"seed {options.seed}, model {index}: exit status {result.returncode}\n{tail}")
    print(f"{options.count} models, {samples} samples, {failed} models failed")
    if not failed and not notices_an_altered_value(options.koine_model, os.path.join(folder, "model-0000")):
        print("an altered value was not noticed")
        failed += 1
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("koine_model")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", metavar="DIR")
    options = parser.parse_args()
    if options.keep:
        return run(options, options.keep)
    with tempfile.TemporaryDirectory() as folder:
        return run(options, folder)


if __name__ == "__main__":
    sys.exit(main())
