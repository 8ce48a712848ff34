// Feeds the JSON files of Hugging Face folders to the importer's readers. The first byte says which file the rest is;
// the others are small and valid.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "model_loader/format/config.h"
#include "model_loader/importer/families.h"
#include "model_loader/importer/hf_config.h"
#include "model_loader/importer/hf_files.h"
#include "model_loader/importer/hf_settings.h"
#include "model_loader/importer/hf_tokenizer.h"
#include "nlohmann/json.hpp"

namespace {

namespace fs = std::filesystem;
namespace ml = koine::model_loader;

void Require(bool condition) {
  if (!condition) std::abort();
}

// One line that names the file, of a bounded length.
void CheckFault(const absl::Status& status) {
  Require(!status.message().empty() && status.message().size() < 100'000);
  Require(status.message().find('\n') == absl::string_view::npos);
}

void Write(const std::string& path, std::string_view bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A sentence encoder with a WordPiece tokenizer, all files valid.
const std::string& Folder() {
  static const std::string& folder = []() -> const std::string& {
    auto* path = new std::string(
        absl::StrCat(fs::exists("/dev/shm") ? std::string("/dev/shm") : fs::temp_directory_path().string(),
                     "/koine_fuzz_hf_", getpid()));
    fs::create_directories(*path + "/1_Pooling");
    Write(*path + "/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n");
    std::atexit([] { fs::remove_all(Folder()); });
    return *path;
  }();
  return folder;
}

constexpr const char* kFiles[] = {"config.json",           "modules.json",
                                  "1_Pooling/config.json", "config_sentence_transformers.json",
                                  "tokenizer_config.json", "generation_config.json"};
constexpr const char* kValid[] = {
    R"({"model_type": "bert", "hidden_size": 4, "num_attention_heads": 1})",
    R"([{"path": "", "type": "m.Transformer"}, {"path": "1_Pooling", "type": "m.Pooling"}])",
    R"({"pooling_mode_cls_token": true})",
    R"({"prompts": {"query": "q: "}})",
    "{}",
    "{}"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kCount = sizeof(kFiles) / sizeof(kFiles[0]);
  if (size == 0 || size > 16'384) return 0;
  const size_t which = data[0] % kCount;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (which == 0) {
    const auto json = ml::ParseHfJson(text, "fuzz");
    if (!json.ok()) {
      CheckFault(json.status());
      return 0;
    }
    const auto config = ml::ParseHfConfig(*json, "fuzz");
    if (!config.ok()) {
      CheckFault(config.status());
      return 0;
    }
    Require(config->heads > 0 && config->d_head > 0 && config->d_model > 0 && config->rows > 0);
    ml::ModelConfig ours = ml::ArchitectureOf(*config, 1'024);
    ours.name = "fuzz";
    ours.encodes = true;
    ours.prompts = ml::TaskPrompts(*config);
    ours.prompt.source = {"$text"};
    ours.prompt.decoder_start = "x";
    ours.special_tokens.eos = 0;
    ours.shared_embedding = true;
    // What the format refuses, it refuses with a message.
    const auto again = ml::ParseModelConfig(ml::ToJson(ours), "fuzz");
    if (!again.ok()) CheckFault(again.status());
    return 0;
  }
  for (size_t i = 0; i < kCount; ++i) {
    Write(absl::StrCat(Folder(), "/", kFiles[i]), i == which ? text : std::string_view(kValid[i]));
  }
  const auto sentence = ml::ReadSentenceSettings(Folder());
  if (!sentence.ok()) {
    CheckFault(sentence.status());
    return 0;
  }
  const auto json = ml::ReadHfJson(Folder() + "/config.json");
  const auto config = ml::ParseHfConfig(*json, "fuzz");
  Require(config.ok());
  const auto tokenizer = ml::ReadHfTokenizer(Folder(), *config, sentence->lower_case, std::nullopt);
  if (!tokenizer.ok()) {
    CheckFault(tokenizer.status());
    return 0;
  }
  Require(tokenizer->tokenizer->PieceToId("a") >= 0);
  const auto generation = ml::ReadGenerationSettings(Folder(), *config, *tokenizer->tokenizer);
  if (!generation.ok()) CheckFault(generation.status());
  return 0;
}
