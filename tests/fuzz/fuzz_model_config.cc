// Feeds bytes to the three configuration parsers. The first byte chooses: model.json, language.json, adapter.json.
// Whatever is accepted must be writable and read back as the same, and its tensor list must stay within bounds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model_loader/format/config.h"
#include "model_loader/format/tensor_table.h"

namespace {

using namespace koine::model_loader;  // NOLINT(build/namespaces)

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireRefusal(const absl::Status& status) {
  Require(status.code() == absl::StatusCode::kInvalidArgument);
  Require(status.message().size() < 1 << 20);
}

// Every dimension is positive or the vocabulary's, and no product overflows.
void CheckShapes(const std::vector<TensorSpec>& specs) {
  for (const TensorSpec& spec : specs) {
    int64_t elements = 1;
    for (const int64_t dimension : spec.shape) {
      Require(dimension > 0 || dimension == kVocabularyRows);
      Require(!__builtin_mul_overflow(elements, dimension == kVocabularyRows ? INT32_MAX : dimension, &elements));
    }
  }
}

template <typename Config, typename ParseFunction>
void RoundTrip(const Config& config, ParseFunction parse) {
  const std::string text = ToJson(config);
  const absl::StatusOr<Config> again = parse(text, "again");
  Require(again.ok());
  Require(ToJson(*again) == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0]) {
    case 'l': {
      const absl::StatusOr<LanguageConfig> config = ParseLanguageConfig(text, "fuzz");
      if (!config.ok()) {
        RequireRefusal(config.status());
        return 0;
      }
      RoundTrip(*config, ParseLanguageConfig);
      return 0;
    }
    case 'a': {
      const absl::StatusOr<AdapterConfig> config = ParseAdapterConfig(text, "fuzz");
      if (!config.ok()) {
        RequireRefusal(config.status());
        return 0;
      }
      RoundTrip(*config, ParseAdapterConfig);
      return 0;
    }
    default: {
      const absl::StatusOr<ModelConfig> config = ParseModelConfig(text, "fuzz");
      if (!config.ok()) {
        RequireRefusal(config.status());
        return 0;
      }
      RoundTrip(*config, ParseModelConfig);
      // A thousand layers a side make a long list; a few are enough here.
      if (config->architecture.encoder_layers.size() + config->architecture.decoder_layers.size() > 16) return 0;
      CheckShapes(SharedTensors(*config));
      AdapterConfig adapter;
      for (const AdapterKind kind : {AdapterKind::kScale, AdapterKind::kBottleneck, AdapterKind::kLora}) {
        adapter.kind = kind;
        adapter.rank = 65'536;
        adapter.scale_self_attention = adapter.scale_cross_attention = adapter.scale_feed_forward = true;
        CheckShapes(LanguageTensors(*config, adapter));
      }
      return 0;
    }
  }
}
