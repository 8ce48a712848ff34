#include "model_loader/importer/slicing.h"

#include <unicode/uscript.h>
#include <unicode/utf8.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model_loader/importer/text_lines.h"

namespace koine::model_loader {
namespace {

constexpr char kWordBoundary[] = "\xe2\x96\x81";  // U+2581, SentencePiece's blank

// The scripts that a code of ISO 15924 stands for.
std::vector<UScriptCode> ScriptsOf(const std::string& script) {
  if (script == "Jpan") return {USCRIPT_HAN, USCRIPT_HIRAGANA, USCRIPT_KATAKANA};
  if (script == "Kore" || script == "Hang") return {USCRIPT_HANGUL, USCRIPT_HAN};
  if (script == "Hans" || script == "Hant" || script == "Hani") return {USCRIPT_HAN, USCRIPT_BOPOMOFO};
  UScriptCode code = USCRIPT_INVALID_CODE;
  UErrorCode error = U_ZERO_ERROR;
  uscript_getCode(script.c_str(), &code, 1, &error);
  if (U_FAILURE(error) || code == USCRIPT_INVALID_CODE) return {};
  return {code};
}

// Characters of a piece, without SentencePiece's blank and WordPiece's "##".
std::vector<UChar32> Characters(const std::string& piece) {
  std::string_view text = piece;
  for (const std::string_view prefix : {std::string_view(kWordBoundary), std::string_view("##")}) {
    while (text.size() > prefix.size() && text.substr(0, prefix.size()) == prefix) text.remove_prefix(prefix.size());
  }
  std::vector<UChar32> characters;
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t i = 0; i < size;) {
    UChar32 c = 0;
    U8_NEXT(bytes, i, size, c);
    characters.push_back(c < 0 ? 0xfffd : c);
  }
  return characters;
}

bool OfScripts(const std::vector<UChar32>& characters, const std::vector<UScriptCode>& scripts) {
  return std::all_of(characters.begin(), characters.end(), [&](UChar32 c) {
    UErrorCode error = U_ZERO_ERROR;
    const UScriptCode own = uscript_getScript(c, &error);
    if (own == USCRIPT_COMMON || own == USCRIPT_INHERITED) return true;
    // Some characters serve several scripts (the Katakana length mark, Arabic digits).
    return std::any_of(scripts.begin(), scripts.end(),
                       [c](UScriptCode script) { return uscript_hasScript(c, script); });
  });
}

}  // namespace

absl::Status AddSample(const std::string& path, const Tokenizer& tokenizer, SamplePieces* sample) {
  return ForLinesOfFile(path, [&](int64_t number, const std::string& line) {
    const absl::StatusOr<Encoded> encoded = tokenizer.Encode(line);
    if (!encoded.ok()) {
      return absl::Status(encoded.status().code(),
                          absl::StrCat(path, ": line ", number, ": ", encoded.status().message()));
    }
    sample->ids.insert(encoded->ids.begin(), encoded->ids.end());
    sample->pieces += static_cast<int64_t>(encoded->ids.size());
    sample->unknown += encoded->unknown_pieces;
    return absl::OkStatus();
  });
}

absl::StatusOr<SamplePieces> ReadSample(const std::string& path, const Tokenizer& tokenizer) {
  SamplePieces sample;
  if (absl::Status status = AddSample(path, tokenizer, &sample); !status.ok()) return status;
  return sample;
}

std::vector<int32_t> CommonRows(const Tokenizer& tokenizer) {
  std::vector<int32_t> rows;
  const auto size = static_cast<int32_t>(tokenizer.size());
  for (int32_t id = 0; id < size; ++id) {
    if (id == tokenizer.unknown_id() || tokenizer.IsMarker(id)) rows.push_back(id);
  }
  for (int32_t id = 0; id < size; ++id) {
    if (tokenizer.IsByte(id)) rows.push_back(id);
  }
  return rows;
}

bool PieceIsOfScript(const std::string& piece, const std::string& script) {
  return OfScripts(Characters(piece), ScriptsOf(script));
}

std::vector<int32_t> SliceRows(const Tokenizer& tokenizer, const std::vector<int32_t>& common,
                               const std::set<int32_t>& sample, const std::string& script, bool whole_script) {
  const std::vector<UScriptCode> scripts = ScriptsOf(script);
  const std::set<int32_t> there(common.begin(), common.end());
  std::vector<int32_t> rows = common;
  const auto size = static_cast<int32_t>(tokenizer.size());
  for (int32_t id = 0; id < size; ++id) {
    if (there.count(id) != 0) continue;
    bool wanted = sample.count(id) != 0;
    if (!wanted) {
      if (tokenizer.IdToPiece(id).empty()) continue;
      // As text: dictionaries of bytes spell it otherwise.
      const absl::StatusOr<std::string> text = tokenizer.Decode({id});
      if (!text.ok()) continue;
      const std::vector<UChar32> characters = Characters(*text);
      wanted = (whole_script || characters.size() <= 1) && OfScripts(characters, scripts);
    }
    if (wanted) rows.push_back(id);
  }
  return rows;
}

}  // namespace koine::model_loader
