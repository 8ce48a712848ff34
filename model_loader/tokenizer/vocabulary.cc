#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model_loader/safetensors/looks_like.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tokenizer/kinds_internal.h"
#include "model_loader/tokenizer/text_internal.h"
#include "model_loader/tokenizer/vocabulary_internal.h"

namespace koine::model_loader {
namespace {

using nlohmann::json;

constexpr size_t kMaxPieceBytes = 1024;
// How many ids may be nobody's, so that one number cannot make us allocate: real dictionaries leave a few out.
constexpr int64_t kMaxHoles = 65'536;

absl::Status CheckPiece(std::string_view piece) {
  if (piece.size() <= kMaxPieceBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the piece \"", Printable(piece), "\" has more than ", kMaxPieceBytes, " bytes"));
}

}  // namespace

std::string Show(const json& value) {
  if (value.is_string()) return Printable(value.get_ref<const std::string&>());
  return Printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

absl::Status Vocabulary::Add(std::string_view piece, int64_t id) {
  if (absl::Status status = CheckPiece(piece); !status.ok()) return status;
  const auto index = static_cast<size_t>(id);
  if (index >= pieces_.size()) {
    pieces_.resize(index + 1);
    markers_.resize(index + 1);
  }
  pieces_[index] = piece;
  ids_.insert_or_assign(std::string(piece), static_cast<int32_t>(id));
  longest_ = std::max(longest_, piece.size());
  return absl::OkStatus();
}

absl::StatusOr<Vocabulary> Vocabulary::FromJson(const json& object) {
  if (!object.is_object()) return absl::InvalidArgumentError("must be a JSON object of ids by pieces");
  if (object.empty()) return absl::InvalidArgumentError("holds no pieces");
  const int64_t most = std::min(kMaxTokenIds, static_cast<int64_t>(object.size()) + kMaxHoles);
  Vocabulary vocabulary;
  for (const auto& [piece, value] : object.items()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(most)) {
      return absl::InvalidArgumentError(absl::StrCat("the id of \"", Printable(piece),
                                                     "\" must be an integer from 0 to ", most - 1, " (there are ",
                                                     object.size(), " pieces)"));
    }
    const auto id = static_cast<int64_t>(value.get<uint64_t>());
    if (piece.empty()) return absl::InvalidArgumentError(absl::StrCat("the piece of id ", id, " is empty"));
    if (id < vocabulary.size() && !vocabulary.pieces_[static_cast<size_t>(id)].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", Printable(piece), "\" and \"",
                                                     Printable(vocabulary.pieces_[static_cast<size_t>(id)]),
                                                     "\" both have id ", id));
    }
    if (absl::Status status = vocabulary.Add(piece, id); !status.ok()) return status;
  }
  return vocabulary;
}

absl::StatusOr<Vocabulary> Vocabulary::FromLines(std::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError("an empty file (0 bytes)");
  if (text.find('\0') != std::string_view::npos || ValidUtf8(std::string(text)) != text) {
    const std::string guess = LooksLike(text);
    return absl::InvalidArgumentError(
        absl::StrCat("not a vocabulary: not UTF-8 text", guess.empty() ? "" : "; it looks like ", guess));
  }
  Vocabulary vocabulary;
  int64_t id = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (id == kMaxTokenIds) return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxTokenIds, " lines"));
    if (line.empty()) {
      vocabulary.pieces_.emplace_back();
      vocabulary.markers_.push_back(false);
    } else if (absl::Status status = vocabulary.Add(line, id); !status.ok()) {
      return status;
    }
    ++id;
  }
  return vocabulary;
}

absl::Status Vocabulary::AddMarkers(const std::map<std::string, int32_t, std::less<>>& markers) {
  for (const auto& [piece, id] : markers) {
    if (id < 0 || id >= kMaxTokenIds) {
      return absl::InvalidArgumentError(
          absl::StrCat("the marker \"", Printable(piece), "\" has id ", id, "; ids are 0 to ", kMaxTokenIds - 1));
    }
    const int32_t known = Find(piece);
    if (known >= 0 && known != id) {
      return absl::InvalidArgumentError(absl::StrCat("the marker \"", Printable(piece), "\" should have id ", id,
                                                     ", but the vocabulary gives it ", known));
    }
    if (id < size() && !pieces_[static_cast<size_t>(id)].empty() && pieces_[static_cast<size_t>(id)] != piece) {
      return absl::InvalidArgumentError(absl::StrCat("the marker \"", Printable(piece), "\" would take id ", id,
                                                     " from \"", Printable(pieces_[static_cast<size_t>(id)]), "\""));
    }
    if (known < 0) {
      if (absl::Status status = Add(piece, id); !status.ok()) return status;
    }
    markers_[static_cast<size_t>(id)] = true;
  }
  return absl::OkStatus();
}

int32_t Vocabulary::Find(std::string_view piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? -1 : found->second;
}

absl::Status DictionaryTokenizer::CheckId(int32_t id) const {
  if (id >= 0 && id < vocabulary_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name_, ": id ", id, " is not below ", vocabulary_.size()));
}

}  // namespace koine::model_loader
