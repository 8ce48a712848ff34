// samples.json: what a model must answer, recomputed in f32 and compared (FORMAT.md, "samples.json").
#ifndef KOINE_MODEL_LOADER_VERIFY_VERIFY_H_
#define KOINE_MODEL_LOADER_VERIFY_VERIFY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model_loader/model/model.h"

namespace koine::model_loader {

// One stored answer. Absent fields are empty and not compared.
struct Sample {
  struct TopLogit {
    int32_t id = 0;
    double value = 0;
  };
  std::string source, target, text;               // both empty in a model without languages
  std::string source_adapter, target_adapter;     // named adapters; empty: the languages' defaults
  std::vector<int32_t> source_ids;                // complete, with prompt tokens
  std::vector<int32_t> decoder_ids;               // teacher-forced, from the start token
  std::vector<double> encoder_last_row;           // [d_model]
  std::vector<double> embedding;                  // pooled as model.json says
  std::vector<double> logits_sum;                 // one per decoder id, over the table's rows
  std::vector<std::vector<TopLogit>> logits_top;  // one list per decoder id
  std::vector<int32_t> greedy_ids;                // from the start token on
  int64_t max_steps = 0;
};

// Strict: INVALID_ARGUMENT naming the file, the sample's number and the key.
absl::StatusOr<std::vector<Sample>> ParseSamples(std::string_view json, const std::string& where);
// Reads DIR/samples.json; NOT_FOUND if there is none.
absl::StatusOr<std::vector<Sample>> ReadSamples(const std::string& model_directory);

struct Tolerances {
  double values = 1e-4;  // encoder rows, embeddings, logits; sums: values * sqrt(V) + 1e-6 * |sum|
};

struct SampleReport {
  std::string name;                                         // "sample 3 (en-de)"
  double encoder = 0, embedding = 0, logits = 0, sums = 0;  // largest differences; sums in units of its tolerance
  std::vector<std::string> faults;                          // empty: passed
};

// Recomputes one sample. Errors are of the sample itself (unknown language, id outside the table).
// Thread rule: pure function of immutable arguments.
absl::StatusOr<SampleReport> VerifySample(const Model& model, const Sample& sample, size_t number,
                                          const Tolerances& tolerances);

// All samples of a folder, with the model loaded in f32.
absl::StatusOr<std::vector<SampleReport>> VerifyModel(const std::string& model_directory, const Tolerances& tolerances);

// --- Making samples ---

// A sample to be computed. `text` gets the model's prompt and, where it has one, its default text prompt.
struct SampleRequest {
  // Codes or aliases, as in Sample; without a target: Encode's values alone.
  std::string source = {}, target = {}, text = {};
  std::string source_adapter = {}, target_adapter = {};  // as in Sample
  int64_t max_steps = 40;
};

// Everything that Sample holds, recomputed as VerifySample does: REQUIRES a model loaded in f32. In a model without
// languages the decoder takes part if there is one. INVALID_ARGUMENT: an unknown language, a blank text, one that is
// longer than the model takes (both numbers are named), a target that an encoder cannot have.
absl::StatusOr<Sample> ComputeSample(const Model& model, const SampleRequest& request);

// Adds samples to DIR/samples.json, which need not exist, in one step: readers see the old list or the new one.
// Whatever the file holds already stays. INVALID_ARGUMENT if it is not a list of samples.
absl::Status AppendSamples(const std::string& model_directory, absl::Span<const Sample> samples);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_VERIFY_VERIFY_H_
