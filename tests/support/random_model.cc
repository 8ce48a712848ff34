#include "tests/support/random_model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/tokenizer/tokenizer.h"
#include "model_loader/writer/model_writer.h"
#include "tests/support/harness.h"

namespace koine::testing {

using model_loader::ModelConfig;
using model_loader::SafetensorsWriter;
using model_loader::TensorSpec;

namespace {

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "random model: %s\n", status.ToString().c_str());
  std::abort();
}

SafetensorsWriter RandomTensors(const std::vector<TensorSpec>& specs, int64_t vocabulary, unsigned seed,
                                kernels::DType dtype, const std::vector<std::string>& lora_sites = {}) {
  SafetensorsWriter writer;
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (const TensorSpec& spec : specs) {
    if (spec.component == model_loader::Component::kVocabularyIds) continue;
    const bool pair = absl::StrContains(spec.name, ".lora.");
    if (pair && !lora_sites.empty() && std::none_of(lora_sites.begin(), lora_sites.end(), [&](const std::string& site) {
          return absl::StrContains(spec.name, "." + site + ".lora.");
        })) {
      continue;
    }
    std::vector<int64_t> shape = spec.shape;
    int64_t count = 1;
    for (int64_t& side : shape) {
      if (side == model_loader::kVocabularyRows) side = vocabulary;
      count *= side;
    }
    // Matrices keep the size of what they multiply; gains stay near 1, biases small.
    const bool matrix = shape.size() == 2;
    const bool gain = !matrix && (absl::EndsWith(spec.name, "norm.weight") || absl::EndsWith(spec.name, ".scale"));
    const float deviation = matrix ? 1.0F / std::sqrt(static_cast<float>(shape[1])) : 0.1F;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = (gain ? 1.0F : 0.0F) + deviation * normal(generator);
    Must(writer.AddF32(spec.name, dtype, shape, values));
  }
  return writer;
}

int64_t PiecesOf(const std::string& tokenizer) {
  const auto parsed = model_loader::ParseSentencePiece(tokenizer, "tokenizer");
  Must(parsed.status());
  return (*parsed)->size();
}

std::string ReadBytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  if (!stream) Must(absl::NotFoundError(path));
  return bytes.str();
}

}  // namespace

ModelConfig SmallConfig(const std::string& name) {
  ModelConfig config;
  config.name = name;
  config.license = "Apache-2.0";
  config.translates = config.encodes = true;
  auto& a = config.architecture;
  a.d_model = 32;
  a.heads = 4;
  a.d_head = 8;
  a.d_ffn = 64;
  a.encoder_layers.assign(2, kernels::LayerOwner::kShared);
  a.decoder_layers.assign(2, kernels::LayerOwner::kShared);
  a.attention_scale = 1.0F / std::sqrt(8.0F);
  a.embedding_scale = std::sqrt(32.0F);
  a.max_positions = 128;
  config.positions.max_positions = 128;
  config.prompt.source = {"$text", "</s>"};
  config.prompt.decoder_start = "<s>";
  config.special_tokens = {.pad = 0, .bos = 1, .eos = 2, .unk = 3};
  return config;
}

std::string SmallTokenizer() { return ReadBytes(SourcePath("tests/data/plans/plan-00/languages/es/tokenizer.model")); }
std::string DemoTokenizer(const std::string& code) {
  return ReadBytes(SourcePath("deploy/demo_model/languages/" + code + "/tokenizer.model"));
}

void WriteRandomShared(const std::string& directory, const ModelConfig& config, unsigned seed, kernels::DType dtype,
                       const std::string& tokenizer) {
  const model_loader::ModelWriter writer(directory);
  int64_t rows = 0;
  if (!tokenizer.empty()) {
    rows = PiecesOf(tokenizer);
    Must(writer.WriteTokenizer(tokenizer));
  }
  Must(writer.WriteShared(config, RandomTensors(model_loader::SharedTensors(config), rows, seed, dtype)));
}

void WriteRandomLanguage(const std::string& directory, const ModelConfig& config, const RandomLanguage& language,
                         const std::string& tokenizer, unsigned seed, kernels::DType dtype) {
  model_loader::LanguageConfig written;
  written.code = written.name = language.code;
  written.adapter = language.adapter;
  const int64_t rows = language.rows == 0 ? PiecesOf(tokenizer) : language.rows;
  Must(model_loader::ModelWriter(directory).WriteLanguage(
      config, written,
      RandomTensors(model_loader::LanguageTensors(config, language.adapter), rows, seed, dtype, language.lora_sites),
      tokenizer));
}

void WriteRandomAdapter(const std::string& directory, const ModelConfig& config, const std::string& code,
                        const std::string& name, const model_loader::AdapterConfig& adapter, unsigned seed,
                        kernels::DType dtype) {
  Must(model_loader::ModelWriter(directory).WriteAdapter(
      config, code, name, adapter, RandomTensors(model_loader::AdapterTensors(config, adapter), 0, seed, dtype)));
}

}  // namespace koine::testing
