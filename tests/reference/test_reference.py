#!/usr/bin/env python3
"""The reference's own tests: the check can fail, the generator is reproducible and reaches the whole family."""

import contextlib
import filecmp
import io
import json
import os
import tempfile
import unittest

import check_reference
import koine_reference
import random_models


def walk(directory):
    for folder, _, files in sorted(os.walk(directory)):
        for name in sorted(files):
            yield os.path.relpath(os.path.join(folder, name), directory)


FLAGS = ("gated_ffn", "tied_output", "output_bias", "embedding_norm", "final_norm", "linear_bias")


class RandomModels(unittest.TestCase):
    COUNT = 60

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        plans = os.path.join(check_reference.ROOT, "tests", "data", "plans")
        cls.tokenizers = random_models.find_tokenizers(plans)
        cls.directories = [os.path.join(cls.temporary.name, f"model-{index}") for index in range(cls.COUNT)]
        cls.models = [
            random_models.make_model(directory, 1, index, cls.tokenizers)
            for index, directory in enumerate(cls.directories)
        ]

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def check(self, directory):
        with contextlib.redirect_stdout(io.StringIO()):
            return check_reference.check_folder(directory)

    def test_models_answer_their_own_samples(self):
        for directory in self.directories[:10]:
            self.assertEqual(self.check(directory), [])

    def test_same_seed_gives_the_same_bytes(self):
        again = os.path.join(self.temporary.name, "again")
        random_models.make_model(again, 1, 3, self.tokenizers)
        files = list(walk(again))
        self.assertEqual(files, list(walk(self.directories[3])))
        _, different, unreadable = filecmp.cmpfiles(again, self.directories[3], files, shallow=False)
        self.assertEqual((different, unreadable), ([], []))

    def test_every_value_of_the_family_occurs(self):
        seen = set()
        for model in self.models:
            architecture, sharing = model.architecture, model.sharing
            for key in ("activation",) + FLAGS:
                seen.add((key, architecture[key]))
            seen.add(("norm", architecture["norm"]["type"], architecture["norm"]["placement"]))
            seen.add(("positions", architecture["positions"]["type"], architecture["positions"].get("exponent")))
            seen.add(("own heads", sharing["language_heads"] > 0, "own layers", self.has_own_layers(sharing)))
            if self.has_own_layers(sharing):
                seen.add(("scope", sharing["language_layers"]["scope"]))
            seen.add(("shared embedding", sharing.get("embedding") == "shared"))
            for language in model.languages.values():
                seen.add(("adapter", language.adapter.kind))
                seen.update(("named adapter", adapter.kind) for adapter in language.adapters.values())
        flags = FLAGS + ("shared embedding",)
        expected = {(flag, value) for flag in flags for value in (False, True)}
        expected |= {("activation", name) for name in random_models.ACTIVATIONS}
        expected |= {("norm", kind, place) for kind in ("layer_norm", "rms_norm") for place in ("pre", "post")}
        expected |= {("positions", "learned", None)}
        expected |= {("positions", "sinusoidal", exponent) for exponent in ("i/(d_model/2-1)", "2i/d_model")}
        expected |= {("own heads", a, "own layers", b) for a in (False, True) for b in (False, True)}
        expected |= {("scope", "attention"), ("scope", "layer")}
        expected |= {("adapter", kind) for kind in ("none", "scale", "bottleneck", "lora")}
        expected |= {("named adapter", kind) for kind in ("scale", "bottleneck", "lora")}
        self.assertEqual(expected - seen, set())

    @staticmethod
    def has_own_layers(sharing):
        return bool(sharing["language_layers"]["encoder"] or sharing["language_layers"]["decoder"])

    def altered(self, change):
        """Faults of a copy of model 0 after `change(samples)`."""
        path = os.path.join(self.directories[0], "samples.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        samples = json.loads(text)
        change(samples)
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(samples, file)
            return self.check(self.directories[0])
        finally:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def test_one_altered_value_fails_naming_the_sample(self):
        def alter(samples):
            samples[1]["encoder_last_row"][0] += 2e-4

        faults = self.altered(alter)
        self.assertEqual(len(faults), 1)
        self.assertIn("sample 1", faults[0])
        self.assertIn("encoder_last_row", faults[0])

    def test_one_altered_logit_fails(self):
        def alter(samples):
            samples[0]["logits_top4"][0][2][1] -= 2e-4

        self.assertEqual(len(self.altered(alter)), 1)

    def test_one_altered_source_id_fails(self):
        def alter(samples):
            samples[0]["source_ids"][0] = 3 if samples[0]["source_ids"][0] != 3 else 4

        self.assertNotEqual(self.altered(alter), [])

    def test_one_altered_greedy_id_fails(self):
        def alter(samples):
            samples[0]["greedy_ids"][-1] ^= 1

        self.assertEqual(len(self.altered(alter)), 1)

    def test_one_altered_weight_fails(self):
        directory = os.path.join(self.temporary.name, "altered")
        model = random_models.make_model(directory, 1, 0, self.tokenizers)
        path = os.path.join(directory, "shared.safetensors")
        tensors = koine_reference.read_safetensors(path)
        name = next(name for name in sorted(tensors) if name.endswith("ffn.down.weight"))
        tensors[name][0, 0] += 0.5
        koine_reference.write_safetensors(path, tensors, {name: "F32" for name in tensors})
        self.assertNotEqual(self.check(directory), [], model.config["name"])


class Safetensors(unittest.TestCase):
    def test_bf16_rounds_to_nearest_even(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.safetensors")
            # 1 + 2^-8 lies halfway between 1 and 1 + 2^-7, and goes to the even one; 1 + 3·2^-8 goes up.
            values = koine_reference.np.array([1 + 2**-8, 1 + 3 * 2**-8, -2.5])
            koine_reference.write_safetensors(path, {"x": values}, {"x": "BF16"})
            self.assertEqual(koine_reference.read_safetensors(path)["x"].tolist(), [1, 1 + 2**-6, -2.5])


if __name__ == "__main__":
    unittest.main()
