// The account of a model's parameters: what was really loaded, by owner, component and dtype (DESIGN S6).
//
// One code path: everything is added up from the tensor lists that loading filled (LoadedTensor), whoever asks (RPC,
// HTTP, command line, koine-model inspect). The closed formulas of plan.h stand beside it as a check, never instead.
//
// Pure functions over immutable values; any thread.
#ifndef KOINE_MODEL_LOADER_ACCOUNTING_ACCOUNT_H_
#define KOINE_MODEL_LOADER_ACCOUNTING_ACCOUNT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/tensor/dtype.h"
#include "model_loader/accounting/plan.h"
#include "model_loader/format/config.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/model/model.h"

namespace koine::model_loader {

inline constexpr size_t kDTypes = static_cast<size_t>(kernels::DType::kI32) + 1;

// Sums over tensors. Bytes are those of the files: what the model is, whatever layout memory holds it in. Integer
// tables (vocab.ids) have bytes and no parameters.
struct Tally {
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
  std::array<int64_t, kDTypes> parameters_by_dtype{};  // indexed by kernels::DType
  std::array<int64_t, kDTypes> bytes_by_dtype{};
};

// What one owner holds, as the caller knows it.
struct OwnerTensors {
  std::string owner;    // "shared" or a language's code
  std::string adapter;  // name of a further adapter of that language, counted apart; "" for the owner itself
  absl::Span<const LoadedTensor> tensors;
  int64_t mapped_bytes = 0;               // of its memory mappings, padding and packed copies included
  std::optional<int64_t> resident_bytes;  // of those, in memory now
  std::optional<int64_t> formula;         // parameters by the closed formulas
};

struct OwnerAccount {
  std::string owner, adapter;
  std::map<Component, Tally> components;  // those that occur
  Tally total;
  int64_t mapped_bytes = 0;
  std::optional<int64_t> resident_bytes;
  std::optional<int64_t> formula;

  // ComponentCounts of the same numbers, to hold against a formula's.
  ComponentCounts parameters() const;
};

struct Account {
  OwnerAccount shared;
  std::vector<OwnerAccount> languages;  // further adapters follow their language
  Tally total;
  int64_t mapped_bytes = 0;
  std::optional<int64_t> resident_bytes;  // if every owner's is known

  // Against one whole model for every language; set by AddSaving.
  struct Saving {
    int64_t independent_parameters = 0;  // N whole models without adapters, each with that language's table
    double ratio = 0;
    int64_t attention_qkv = 0, attention_qkvo = 0;                          // of this plan, by formula
    int64_t independent_attention_qkv = 0, independent_attention_qkvo = 0;  // N·L·H·head
    double attention_ratio = 0;                                             // of Q, K, V
    int64_t next_language_parameters = 0, next_language_bytes = 0;          // mean of the languages there are
    int64_t next_language_mapped_bytes = 0;
  };
  std::optional<Saving> saving;
};

// Adds everything up. A tensor named twice by one owner is one tensor (tied) and counts once; INVALID_ARGUMENT if its
// two entries disagree, if elements and shape or bytes disagree, or if an owner occurs twice. OUT_OF_RANGE where a sum
// exceeds 2^63 - 1.
absl::StatusOr<Account> MakeAccount(const OwnerTensors& shared, absl::Span<const OwnerTensors> languages);

// Fills account.saving from the model's architecture and the account's own tables.
absl::Status AddSaving(const ModelConfig& config, Account& account);

// How many more languages like the mean of those loaded fit into `free_bytes` of mapped memory; nullopt where that is
// unknown (no language yet, or they map nothing).
std::optional<int64_t> MoreLanguagesThatFit(const Account& account, int64_t free_bytes);

// The tensors of a list as they would load, all present, from files of `dtype` (I32 for integer ones), with
// `vocabulary` rows: an account without a model. OUT_OF_RANGE where a tensor exceeds 2^63 - 1 bytes.
absl::StatusOr<std::vector<LoadedTensor>> ExpectedTensors(absl::Span<const TensorSpec> specs, int64_t vocabulary,
                                                          kernels::DType dtype);

// The account of a loaded model: the formulas beside every owner, savings, and what of its mappings is in memory now
// (from /proc/self/smaps; absent where that cannot be read). The second form counts the languages that are loaded at
// the moment, whatever the model started with.
absl::StatusOr<Account> AccountOf(const Model& model);
absl::StatusOr<Account> AccountOf(const Model& model, absl::Span<const std::shared_ptr<const Language>> languages);

// A table for people: one line an owner, one column a component, then totals, dtypes and savings.
std::string RenderTable(const Account& account);
// One object, snake_case keys.
std::string ToJson(const Account& account);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_ACCOUNTING_ACCOUNT_H_
