// Feeds adapter_config.json files of PEFT. What is accepted has numbers that adapter.json takes, for every module.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "absl/status/statusor.h"
#include "model_loader/format/config.h"
#include "model_loader/peft/adapter_config.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace ml = koine::model_loader;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = ml::ParsePeftConfig(text, "fuzz");
  if (!config.ok()) {
    Require(config.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  for (const std::string_view module :
       {std::string_view("model.encoder.layers.0.self_attn.q_proj"), std::string_view("fc1"), std::string_view(""),
        std::string_view("decoder.block.3.layer.1.EncDecAttention.v"), text}) {
    (void)config->IsTarget(module);
    const auto rank = config->RankOf(module);
    const auto alpha = config->AlphaOf(module);
    if (!rank.ok() || !alpha.ok()) continue;
    ml::AdapterConfig adapter;
    adapter.kind = ml::AdapterKind::kLora;
    adapter.rank = *rank;
    adapter.alpha = *alpha;
    adapter.rank_stabilised = config->rank_stabilised;
    const auto again = ml::ParseAdapterConfig(ml::ToJson(adapter), "fuzz");
    Require(again.ok() && again->rank == *rank && again->alpha == *alpha);
    Require(std::isfinite(again->PairScale("encoder.layers.0.ffn.up")));
  }
  return 0;
}
