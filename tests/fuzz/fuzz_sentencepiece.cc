// Feeds model files to the tokenizer. libsentencepiece itself is not instrumented, so its own slips show as signals
// only; what is fuzzed is our guard in front of it: whatever the guard accepts, the library must survive.
//
//   u16 little-endian: bytes of text | text | model file
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model_loader/tokenizer/tokenizer.h"

namespace {

using koine::model_loader::Encoded;
using koine::model_loader::Tokenizer;

void Require(bool condition) {
  if (!condition) std::abort();
}

bool IsUtf8(std::string_view text) {
  // By the table of RFC 3629, written independently of the code under test.
  for (size_t i = 0; i < text.size();) {
    const auto at = [&](size_t k) { return k < text.size() ? static_cast<uint8_t>(text[k]) : 0; };
    uint32_t code = at(i);
    size_t extra = 0;
    if (code >= 0xf0) {
      code &= 0x07;
      extra = 3;
    } else if (code >= 0xe0) {
      code &= 0x0f;
      extra = 2;
    } else if (code >= 0xc0) {
      code &= 0x1f;
      extra = 1;
    } else if (code >= 0x80) {
      return false;
    }
    if (at(i) >= 0xf8) return false;
    for (size_t k = 1; k <= extra; ++k) {
      if ((at(i + k) & 0xc0) != 0x80) return false;
      code = code << 6 | (at(i + k) & 0x3fU);
    }
    static constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[extra] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    i += extra + 1;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t text_bytes =
      std::min<size_t>(size - 2, static_cast<size_t>(data[0]) | static_cast<size_t>(data[1]) << 8);
  const char* bytes = reinterpret_cast<const char*>(data);
  const std::string_view text(bytes + 2, text_bytes);
  const std::string_view model(bytes + 2 + text_bytes, size - 2 - text_bytes);

  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = koine::model_loader::ParseSentencePiece(model, "fuzz");
  if (!tokenizer.ok()) {
    Require(tokenizer.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  Require((*tokenizer)->size() > 0);
  if (IsUtf8(text)) {
    const absl::StatusOr<Encoded> encoded = (*tokenizer)->Encode(text);
    if (encoded.ok()) {
      for (const int32_t id : encoded->ids) Require(id >= 0 && id < (*tokenizer)->size());
      const absl::StatusOr<std::string> decoded = (*tokenizer)->Decode(encoded->ids);
      if (decoded.ok()) Require(IsUtf8(*decoded));
    }
  }
  // The text's bytes once more, as ids.
  std::vector<int32_t> ids;
  for (const char byte : text.substr(0, 64)) ids.push_back(static_cast<uint8_t>(byte) % (*tokenizer)->size());
  const absl::StatusOr<std::string> decoded = (*tokenizer)->Decode(ids);
  if (decoded.ok()) Require(IsUtf8(*decoded));
  for (const int32_t id : ids) Require((*tokenizer)->PieceToId((*tokenizer)->IdToPiece(id)) == id);
  return 0;
}
