// The account of tensors that were really loaded, held against stored counts of 18 plans and against the formulas.
#include "model_loader/accounting/account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "model_loader/accounting/mappings.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

fs::path Plans() { return fs::path(KOINE_SOURCE_DIR) / "tests" / "data" / "plans"; }

std::string Read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::shared_ptr<const Model> Load(const fs::path& directory) {
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(directory.string(), {});
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return nullptr;
  }
  return *model;
}

LoadedTensor Tensor(std::string name, Component component, std::vector<int64_t> shape,
                    kernels::DType dtype = kernels::DType::kF32) {
  LoadedTensor tensor;
  tensor.name = std::move(name);
  tensor.component = component;
  tensor.file_dtype = dtype;
  tensor.elements = 1;
  for (const int64_t dimension : shape) tensor.elements *= dimension;
  tensor.shape = std::move(shape);
  tensor.file_bytes = tensor.elements * static_cast<int64_t>(kernels::SizeOf(dtype));
  return tensor;
}

OwnerTensors Owner(std::string name, absl::Span<const LoadedTensor> tensors, std::string adapter = "") {
  OwnerTensors owner;
  owner.owner = std::move(name);
  owner.adapter = std::move(adapter);
  owner.tensors = tensors;
  return owner;
}

// --- The 18 plans ---

TEST(Plans, StoredCountsEqualTheLoadedTensorsAndTheFormulas) {
  const json index = json::parse(Read(Plans() / "index.json"));
  ASSERT_EQ(index.size(), 18u);
  for (const json& plan : index) {
    const std::string name = plan.at("plan");
    SCOPED_TRACE(name);
    const std::shared_ptr<const Model> model = Load(Plans() / name);
    ASSERT_NE(model, nullptr);
    const absl::StatusOr<Account> account = AccountOf(*model);
    ASSERT_TRUE(account.ok()) << account.status();
    std::map<std::string, int64_t> counted = {{"shared", account->shared.total.parameters}};
    std::map<std::string, int64_t> by_formula = {{"shared", account->shared.formula.value()}};
    for (const OwnerAccount& language : account->languages) {
      counted[language.owner] = language.total.parameters;
      by_formula[language.owner] = language.formula.value();
    }
    const auto stored = plan.at("parameters").get<std::map<std::string, int64_t>>();
    EXPECT_EQ(counted, stored);
    EXPECT_EQ(by_formula, stored);
  }
}

TEST(Plans, ComponentsAreWhereThePlanPutsThem) {
  const json index = json::parse(Read(Plans() / "index.json"));
  for (const json& plan : index) {
    const std::shared_ptr<const Model> model = Load(Plans() / plan.at("plan").get<std::string>());
    ASSERT_NE(model, nullptr);
    SCOPED_TRACE(plan.at("plan").get<std::string>());
    const Account account = AccountOf(*model).value();
    EXPECT_EQ(account.shared.components.count(Component::kEmbedding), 0u);
    EXPECT_EQ(account.shared.components.count(Component::kOwnHeads), 0u);
    const bool own_heads = plan.at("own_heads").get<std::string>().front() != '0';
    const bool own_layers =
        !plan.at("own_layers").at("encoder").empty() || !plan.at("own_layers").at("decoder").empty();
    for (const OwnerAccount& language : account.languages) {
      EXPECT_EQ(language.components.count(Component::kOwnHeads), own_heads ? 1u : 0u);
      EXPECT_EQ(language.components.count(Component::kOwnLayers), own_layers ? 1u : 0u);
      const bool adapter = plan.at("adapters").at(language.owner) != "none";
      EXPECT_EQ(language.components.count(Component::kAdapter), adapter ? 1u : 0u);
      EXPECT_EQ(language.components.count(Component::kEmbedding), 1u);
    }
  }
}

TEST(Demo, AddsUpAndItsMappingsAreInMemory) {
  const std::shared_ptr<const Model> model = Load(fs::path(KOINE_SOURCE_DIR) / "deploy" / "demo_model");
  ASSERT_NE(model, nullptr);
  const Account account = AccountOf(*model).value();
  // 22.5 million parameters in bf16, two bytes each, in nine files.
  EXPECT_EQ(account.total.parameters, 22'475'776);
  EXPECT_EQ(account.total.bytes, 2 * account.total.parameters);
  EXPECT_EQ(account.total.bytes_by_dtype[static_cast<size_t>(kernels::DType::kBF16)], account.total.bytes);
  EXPECT_EQ(account.languages.size(), 8u);
  int64_t parameters = account.shared.total.parameters, mapped = account.shared.mapped_bytes;
  for (const OwnerAccount& language : account.languages) {
    parameters += language.total.parameters;
    mapped += language.mapped_bytes;
    EXPECT_EQ(language.formula, language.total.parameters) << language.owner;
    ASSERT_TRUE(language.resident_bytes.has_value());
    EXPECT_GT(*language.resident_bytes, 0) << language.owner;
  }
  EXPECT_EQ(parameters, account.total.parameters);
  EXPECT_EQ(mapped, account.mapped_bytes);
  ASSERT_TRUE(account.resident_bytes.has_value());
  EXPECT_LE(*account.resident_bytes, account.mapped_bytes);
  EXPECT_GT(*account.resident_bytes, account.mapped_bytes * 9 / 10);

  ASSERT_TRUE(account.saving.has_value());
  const Account::Saving& saving = *account.saving;
  // 8 blocks (4 encoder layers, 2 decoder layers of two) of 3·256² and 4·256², N = 8.
  EXPECT_EQ(saving.attention_qkv, 8 * 3 * 256 * 256);
  EXPECT_EQ(saving.attention_qkvo, 8 * 4 * 256 * 256);
  EXPECT_EQ(saving.independent_attention_qkv, 8 * saving.attention_qkv);
  EXPECT_DOUBLE_EQ(saving.attention_ratio, 1 - 1 / 8.0);
  // Each whole model: the shared part and a table of 8,000 rows, without the adapter.
  EXPECT_EQ(saving.independent_parameters, 8 * (account.shared.total.parameters + 8'000 * 256));
  EXPECT_EQ(saving.next_language_parameters, account.languages[0].total.parameters);
  EXPECT_EQ(MoreLanguagesThatFit(account, 10 * account.languages[0].mapped_bytes + 1), 10);
}

TEST(Demo, CountsTheLanguagesThatAreLoadedNow) {
  const std::shared_ptr<const Model> model = Load(fs::path(KOINE_SOURCE_DIR) / "deploy" / "demo_model");
  ASSERT_NE(model, nullptr);
  const Account none = AccountOf(*model, {}).value();
  EXPECT_TRUE(none.languages.empty());
  EXPECT_EQ(none.total.parameters, none.shared.total.parameters);
  EXPECT_EQ(MoreLanguagesThatFit(none, 1 << 30), std::nullopt);
  const Account two = AccountOf(*model, model->languages().subspan(0, 2)).value();
  EXPECT_EQ(two.languages.size(), 2u);
  EXPECT_DOUBLE_EQ(two.saving->attention_ratio, 0.5);
}

// --- Sums and their rules ---

TEST(MakeAccount, SumsByOwnerComponentAndDtype) {
  const std::vector<LoadedTensor> shared = {Tensor("a.q.weight", Component::kAttentionQ, {4, 8}),
                                            Tensor("b.q.weight", Component::kAttentionQ, {4, 8}, kernels::DType::kBF16),
                                            Tensor("norm.weight", Component::kNorm, {8})};
  const std::vector<LoadedTensor> german = {
      Tensor("embedding.weight", Component::kEmbedding, {10, 8}, kernels::DType::kF16),
      Tensor("vocab.ids", Component::kVocabularyIds, {10}, kernels::DType::kI32)};
  const std::vector<LoadedTensor> legal = {Tensor("ffn.scale", Component::kAdapter, {8})};
  const Account account =
      MakeAccount(Owner("shared", shared), {Owner("de", german), Owner("de", legal, "legal")}).value();
  EXPECT_EQ(account.shared.total.parameters, 72);
  EXPECT_EQ(account.shared.total.bytes, 128 + 64 + 32);
  EXPECT_EQ(account.shared.components.at(Component::kAttentionQ).tensors, 2);
  EXPECT_EQ(account.shared.components.at(Component::kAttentionQ).parameters, 64);
  EXPECT_EQ(account.shared.components.at(Component::kAttentionQ).bytes, 192);
  // Integer tables take bytes and are no parameters.
  EXPECT_EQ(account.languages[0].total.parameters, 80);
  EXPECT_EQ(account.languages[0].total.bytes, 160 + 40);
  EXPECT_EQ(account.languages[1].adapter, "legal");
  EXPECT_EQ(account.total.parameters, 72 + 80 + 8);
  EXPECT_EQ(account.total.bytes, 224 + 200 + 32);
  EXPECT_EQ(account.total.tensors, 6);
  int64_t by_dtype = 0;
  for (const int64_t bytes : account.total.bytes_by_dtype) by_dtype += bytes;
  EXPECT_EQ(by_dtype, account.total.bytes);
  EXPECT_EQ(account.total.parameters_by_dtype[static_cast<size_t>(kernels::DType::kI32)], 0);
}

TEST(MakeAccount, TiedTensorsCountOnce) {
  const std::vector<LoadedTensor> tied = {Tensor("embedding.weight", Component::kEmbedding, {10, 8}),
                                          Tensor("embedding.weight", Component::kEmbedding, {10, 8})};
  EXPECT_EQ(MakeAccount(Owner("shared", tied), {})->total.parameters, 80);
  EXPECT_EQ(MakeAccount(Owner("shared", tied), {})->total.tensors, 1);
}

TEST(MakeAccount, RefusesContradictions) {
  const auto message = [](absl::Span<const LoadedTensor> tensors) {
    const absl::Status status = MakeAccount(Owner("shared", {}), {Owner("de", tensors)}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const LoadedTensor good = Tensor("x", Component::kNorm, {4});
  EXPECT_THAT(message({good, Tensor("x", Component::kNorm, {5})}), HasSubstr("de: x occurs twice"));
  LoadedTensor wrong = good;
  wrong.elements = 5;
  EXPECT_THAT(message({wrong}), HasSubstr("5 elements in a shape of 4"));
  wrong = good;
  wrong.file_bytes = 15;
  EXPECT_THAT(message({wrong}), HasSubstr("15 bytes where 4 elements of F32 take 16"));
  const absl::Status twice = MakeAccount(Owner("shared", {}), {Owner("de", {}), Owner("de", {})}).status();
  EXPECT_THAT(std::string(twice.message()), HasSubstr("owner de occurs twice"));
}

TEST(MakeAccount, OverflowIsAnError) {
  const int64_t huge = std::numeric_limits<int64_t>::max() / 8;
  const std::vector<LoadedTensor> tensors = {Tensor("a", Component::kNorm, {huge}),
                                             Tensor("b", Component::kNorm, {huge}),
                                             Tensor("c", Component::kNorm, {huge})};
  EXPECT_EQ(MakeAccount(Owner("shared", tensors), {}).status().code(), absl::StatusCode::kOutOfRange);
  LoadedTensor wide = Tensor("w", Component::kNorm, {1});
  wide.shape = {std::numeric_limits<int64_t>::max(), 2};
  EXPECT_EQ(MakeAccount(Owner("shared", {wide}), {}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(MakeAccount, ResidentBytesAreKnownOnlyIfAllAre) {
  OwnerTensors shared = Owner("shared", {}), german = Owner("de", {});
  shared.resident_bytes = 10;
  EXPECT_EQ(MakeAccount(shared, {german})->resident_bytes, std::nullopt);
  german.resident_bytes = 5;
  EXPECT_EQ(MakeAccount(shared, {german})->resident_bytes, 15);
}

// --- Texts ---

TEST(Render, TableAndJsonAgreeWithTheAccount) {
  const std::shared_ptr<const Model> model = Load(fs::path(KOINE_SOURCE_DIR) / "deploy" / "demo_model");
  ASSERT_NE(model, nullptr);
  const Account account = AccountOf(*model).value();
  const std::string table = RenderTable(account);
  for (const char* text : {"22,475,776", "5,266,944", "equal", "BF16", "87.50 %", "embedding", "One more language"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
  const json parsed = json::parse(ToJson(account));
  EXPECT_EQ(parsed.at("total").at("parameters"), 22'475'776);
  EXPECT_EQ(parsed.at("languages").size(), 8u);
  EXPECT_EQ(parsed.at("shared").at("formula_parameters"), parsed.at("shared").at("total").at("parameters"));
  EXPECT_EQ(parsed.at("saving").at("attention_ratio"), 0.875);
  int64_t components = 0;
  for (const auto& [name, tally] : parsed.at("shared").at("components").items()) {
    components += tally.at("parameters").get<int64_t>();
  }
  EXPECT_EQ(components, account.shared.total.parameters);
}

TEST(Render, DifferingFormulaIsShown) {
  OwnerTensors shared = Owner("shared", {});
  shared.formula = 1234;
  EXPECT_THAT(RenderTable(MakeAccount(shared, {}).value()), HasSubstr("1,234"));
}

// --- Mappings ---

TEST(Mappings, SumsByNameAndSkipsOthers) {
  const auto mappings = ParseNamedMappings(
      "7f0000000000-7f0000002000 r--s 00000000 00:01 17   /memfd:koine:demo:de (deleted)\n"
      "Size:                  8 kB\n"
      "Rss:                   4 kB\n"
      "Pss:                   2 kB\n"
      "VmFlags: rd sh mr\n"
      "7f0000002000-7f0000004000 rw-p 00000000 00:00 0 \n"
      "Size:                 99 kB\n"
      "Rss:                  99 kB\n"
      "7f0000004000-7f0000006000 r--s 00002000 00:01 17   /memfd:koine:demo:de (deleted)\n"
      "Size:                  8 kB\n"
      "Rss:             nonsense\n"
      "Pss:                   1 kB\n");
  ASSERT_EQ(mappings.size(), 1u);
  const MappedMemory& german = mappings.at("koine:demo:de");
  EXPECT_EQ(german.size, 16 * 1024);
  EXPECT_EQ(german.resident, 4 * 1024);
  EXPECT_EQ(german.share, 3 * 1024);
}

TEST(Mappings, SeesThisProcessPagesAsTheyAreTouched) {
  constexpr size_t kBytes = 64 * 1024;
  const int file = memfd_create("koine-mappings-test", 0);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, kBytes), 0);
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EQ(ReadNamedMappings()->at("koine-mappings-test").resident, 0);
  std::fill_n(static_cast<volatile char*>(memory), kBytes, '\1');
  const MappedMemory mapped = ReadNamedMappings()->at("koine-mappings-test");
  EXPECT_EQ(mapped.size, static_cast<int64_t>(kBytes));
  EXPECT_EQ(mapped.resident, static_cast<int64_t>(kBytes));
  munmap(memory, kBytes);
  close(file);
  EXPECT_EQ(ReadNamedMappings()->count("koine-mappings-test"), 0u);
}

}  // namespace
}  // namespace koine::model_loader
