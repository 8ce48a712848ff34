// Model folders with random weights, in any shape of the sharing family: for tests and benchmarks that need many
// languages or other shapes than the stored models have.
#ifndef KOINE_TESTS_SUPPORT_RANDOM_MODEL_H_
#define KOINE_TESTS_SUPPORT_RANDOM_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor/dtype.h"
#include "model_loader/format/config.h"

namespace koine::testing {

struct RandomLanguage {
  std::string code;
  model_loader::AdapterConfig adapter;
  int64_t rows = 0;  // of the table; >= the tokenizer's pieces; 0: as many
  // Low-rank pairs of these projections only ("self_attn.q"); empty: of all.
  std::vector<std::string> lora_sites = {};
};

// A small shared-attention model: d_model 32, 4 heads of 8, 2 + 2 layers, pre-norm, tied.
model_loader::ModelConfig SmallConfig(const std::string& name);

// Bytes of a SentencePiece model stored with the tests (310 pieces), or of a demo language (8,000 pieces).
std::string SmallTokenizer();
std::string DemoTokenizer(const std::string& code);

// Writes the shared part: weights normal with deviation 1/sqrt(columns), norms about 1, all from `seed`. Aborts the
// test program with a message on errors (they are the test's own). `tokenizer` is written, and its pieces are the rows
// of the table, where the vocabulary is shared.
void WriteRandomShared(const std::string& directory, const model_loader::ModelConfig& config, unsigned seed,
                       kernels::DType dtype = kernels::DType::kF32, const std::string& tokenizer = "");
void WriteRandomLanguage(const std::string& directory, const model_loader::ModelConfig& config,
                         const RandomLanguage& language, const std::string& tokenizer, unsigned seed,
                         kernels::DType dtype = kernels::DType::kF32);
void WriteRandomAdapter(const std::string& directory, const model_loader::ModelConfig& config, const std::string& code,
                        const std::string& name, const model_loader::AdapterConfig& adapter, unsigned seed,
                        kernels::DType dtype = kernels::DType::kF32);

}  // namespace koine::testing

#endif  // KOINE_TESTS_SUPPORT_RANDOM_MODEL_H_
