#include "model_loader/tokenizer/load_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tokenizer/kinds_internal.h"
#include "model_loader/tokenizer/text_internal.h"

namespace koine::model_loader {
namespace {

absl::Status CheckFiles(const TokenizerConfig& config) {
  const FileCount count = FileCountOf(config.kind);
  if (config.files.size() < count.least || config.files.size() > count.most) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer's files are [", absl::StrJoin(config.files, ", "), "]: must name ", count.what));
  }
  for (const std::string& file : config.files) {
    if (!IsPlainFileName(file)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer file \"", Printable(file), "\": not a plain name of a file in the model's folder"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Make(const TokenizerConfig& config, const std::vector<std::string>& names,
                                                const std::vector<std::string>& contents, const KeepId& keep) {
  switch (config.kind) {
    case TokenizerKind::kSentencePiece:
      return MakeOffsetTokenizer(config, names, contents, keep);
    case TokenizerKind::kSentencePieceVocab:
      return MakeVocabTokenizer(config, names, contents, keep);
    case TokenizerKind::kWordPiece:
      return MakeWordPieceTokenizer(config, names, contents, keep);
    case TokenizerKind::kByteBpe:
      return MakeByteBpeTokenizer(config, names, contents, keep);
  }
  return absl::InvalidArgumentError("no such tokenizer kind");
}

struct Files {
  std::vector<std::string> names, contents;
};

absl::StatusOr<Files> Read(const std::string& folder, const TokenizerConfig& config) {
  if (absl::Status status = CheckFiles(config); !status.ok()) return status;
  Files files;
  for (size_t i = 0; i < config.files.size(); ++i) {
    files.names.push_back(absl::StrCat(folder, "/", config.files[i]));
    const bool dictionary = config.kind == TokenizerKind::kWordPiece || config.kind == TokenizerKind::kByteBpe ||
                            (config.kind == TokenizerKind::kSentencePieceVocab && i + 1 == config.files.size());
    absl::StatusOr<std::string> bytes =
        ReadTokenizerFile(files.names.back(), dictionary ? kMaxDictionaryBytes : kMaxModelFileBytes);
    if (!bytes.ok()) return bytes.status();
    files.contents.push_back(*std::move(bytes));
  }
  return files;
}

absl::StatusOr<Files> FromMemory(const TokenizerConfig& config, const std::vector<std::string>& contents) {
  if (absl::Status status = CheckFiles(config); !status.ok()) return status;
  if (contents.size() != config.files.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.files.size(), " tokenizer files are named, but ", contents.size(), " given"));
  }
  return Files{config.files, contents};
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSliced(const TokenizerConfig& config, const Files& files,
                                                      absl::Span<const int32_t> vocab_ids, int32_t local_unknown_id) {
  std::vector<int32_t> sorted(vocab_ids.begin(), vocab_ids.end());
  std::sort(sorted.begin(), sorted.end());
  const KeepId keep = [&sorted](int32_t id) { return std::binary_search(sorted.begin(), sorted.end(), id); };
  absl::StatusOr<std::unique_ptr<Tokenizer>> base = Make(config, files.names, files.contents, keep);
  if (!base.ok()) return base.status();
  absl::StatusOr<std::unique_ptr<SlicedTokenizer>> sliced =
      SlicedTokenizer::Create(*std::move(base), vocab_ids, local_unknown_id);
  if (!sliced.ok()) {
    return absl::Status(sliced.status().code(), absl::StrCat(files.names.front(), ": ", sliced.status().message()));
  }
  return std::unique_ptr<Tokenizer>(*std::move(sliced));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& folder, const TokenizerConfig& config) {
  const absl::StatusOr<Files> files = Read(folder, config);
  if (!files.ok()) return files.status();
  return Make(config, files->names, files->contents, nullptr);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizer(const TokenizerConfig& config,
                                                          const std::vector<std::string>& contents) {
  const absl::StatusOr<Files> files = FromMemory(config, contents);
  if (!files.ok()) return files.status();
  return Make(config, files->names, files->contents, nullptr);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSlicedTokenizer(const std::string& folder, const TokenizerConfig& config,
                                                               absl::Span<const int32_t> vocab_ids,
                                                               int32_t local_unknown_id) {
  const absl::StatusOr<Files> files = Read(folder, config);
  if (!files.ok()) return files.status();
  return MakeSliced(config, *files, vocab_ids, local_unknown_id);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseSlicedTokenizer(const TokenizerConfig& config,
                                                                const std::vector<std::string>& contents,
                                                                absl::Span<const int32_t> vocab_ids,
                                                                int32_t local_unknown_id) {
  const absl::StatusOr<Files> files = FromMemory(config, contents);
  if (!files.ok()) return files.status();
  return MakeSliced(config, *files, vocab_ids, local_unknown_id);
}

SlicedTokenizer::SlicedTokenizer(std::shared_ptr<const Tokenizer> base, absl::Span<const int32_t> vocab_ids,
                                 int32_t local_unknown_id)
    : base_(std::move(base)), globals_(vocab_ids.begin(), vocab_ids.end()), unknown_id_(local_unknown_id) {
  by_global_.reserve(globals_.size());
  for (size_t row = 0; row < globals_.size(); ++row) by_global_.emplace_back(globals_[row], static_cast<int32_t>(row));
  std::sort(by_global_.begin(), by_global_.end());
}

absl::StatusOr<std::unique_ptr<SlicedTokenizer>> SlicedTokenizer::Create(std::shared_ptr<const Tokenizer> base,
                                                                         absl::Span<const int32_t> vocab_ids,
                                                                         int32_t local_unknown_id) {
  if (vocab_ids.empty() || vocab_ids.size() > static_cast<size_t>(kMaxTokenIds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab.ids: ", vocab_ids.size(), " rows; 1 to ", kMaxTokenIds, " are allowed"));
  }
  for (size_t row = 0; row < vocab_ids.size(); ++row) {
    if (vocab_ids[row] < 0 || vocab_ids[row] >= kMaxTokenIds) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocab.ids: row ", row, " has id ", vocab_ids[row], "; ids are 0 to ", kMaxTokenIds - 1));
    }
  }
  if (local_unknown_id < 0 || local_unknown_id >= static_cast<int64_t>(vocab_ids.size())) {
    return absl::InvalidArgumentError(absl::StrCat("vocab.ids: the unknown row ", local_unknown_id,
                                                   " is not one of the ", vocab_ids.size(), " rows"));
  }
  if (vocab_ids[static_cast<size_t>(local_unknown_id)] != base->unknown_id()) {
    return absl::InvalidArgumentError(absl::StrCat("vocab.ids: row ", local_unknown_id,
                                                   " should be the unknown piece, id ", base->unknown_id(),
                                                   ", but is id ", vocab_ids[static_cast<size_t>(local_unknown_id)]));
  }
  std::unique_ptr<SlicedTokenizer> sliced(new SlicedTokenizer(std::move(base), vocab_ids, local_unknown_id));
  const auto twice = std::adjacent_find(sliced->by_global_.begin(), sliced->by_global_.end(),
                                        [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != sliced->by_global_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("vocab.ids: rows ", twice->second, " and ", std::next(twice)->second,
                                                   " both have id ", twice->first));
  }
  return sliced;
}

int32_t SlicedTokenizer::ToLocal(int32_t global_id) const {
  const auto found = std::lower_bound(by_global_.begin(), by_global_.end(), std::pair(global_id, int32_t{-1}));
  return found != by_global_.end() && found->first == global_id ? found->second : -1;
}

absl::StatusOr<Encoded> SlicedTokenizer::Encode(std::string_view text) const {
  absl::StatusOr<Encoded> encoded = base_->Encode(text);
  if (!encoded.ok()) return encoded;
  encoded->unknown_pieces = 0;
  for (int32_t& id : encoded->ids) {
    id = ToLocal(id);
    if (id < 0) id = unknown_id_;
    if (id == unknown_id_) ++encoded->unknown_pieces;
  }
  return encoded;
}

absl::StatusOr<std::string> SlicedTokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::vector<int32_t> globals;
  globals.reserve(ids.size());
  for (const int32_t id : ids) {
    if (id < 0 || id >= size()) return absl::InvalidArgumentError(absl::StrCat("id ", id, " is not below ", size()));
    const int32_t global = globals_[static_cast<size_t>(id)];
    if (global < base_->size()) globals.push_back(global);
  }
  return base_->Decode(globals);
}

int32_t SlicedTokenizer::PieceToId(std::string_view piece) const {
  const int32_t global = base_->PieceToId(piece);
  return global < 0 ? -1 : ToLocal(global);
}

std::string SlicedTokenizer::IdToPiece(int32_t id) const {
  return id >= 0 && id < size() ? base_->IdToPiece(globals_[static_cast<size_t>(id)]) : std::string();
}

bool SlicedTokenizer::IsMarker(int32_t id) const {
  return id >= 0 && id < size() && base_->IsMarker(globals_[static_cast<size_t>(id)]);
}

bool SlicedTokenizer::IsByte(int32_t id) const {
  return id >= 0 && id < size() && base_->IsByte(globals_[static_cast<size_t>(id)]);
}

}  // namespace koine::model_loader
