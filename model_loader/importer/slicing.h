// Which rows of a large table a language needs (DESIGN: slicing).
#ifndef KOINE_MODEL_LOADER_IMPORTER_SLICING_H_
#define KOINE_MODEL_LOADER_IMPORTER_SLICING_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model_loader/tokenizer/tokenizer.h"

namespace koine::model_loader {

// Pieces of a text file, line by line.
struct SamplePieces {
  std::set<int32_t> ids;
  int64_t pieces = 0, unknown = 0;
};
// Adds a file's pieces. NOT_FOUND; INVALID_ARGUMENT for what is no file of text, and, naming the line, for bytes that
// are no UTF-8.
absl::Status AddSample(const std::string& path, const Tokenizer& tokenizer, SamplePieces* sample);
// The pieces of one file.
absl::StatusOr<SamplePieces> ReadSample(const std::string& path, const Tokenizer& tokenizer);

// What every table starts with, in this order: the unknown piece and all markers by id (special tokens and the tags of
// all languages), then byte pieces. They have the same rows in every table.
std::vector<int32_t> CommonRows(const Tokenizer& tokenizer);

// Whether a piece belongs to a script (ISO 15924): all its letters are the script's, or of no script of their own.
// "Jpan", "Kore", "Hans" and "Hant" stand for the scripts they are made of. Pieces without letters belong to all.
bool PieceIsOfScript(const std::string& piece, const std::string& script);

// The rows of a language's table, as ids of the whole vocabulary: `common`, then, by id, `sample` and every piece of
// one character of the script, so that a word outside the sample can still be spelled; with `whole_script`, every piece
// of the script. Rows that no piece has are left out.
std::vector<int32_t> SliceRows(const Tokenizer& tokenizer, const std::vector<int32_t>& common,
                               const std::set<int32_t>& sample, const std::string& script, bool whole_script);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_SLICING_H_
