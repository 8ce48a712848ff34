// Checkpoint folders of every form: each tensor's bytes and values against what Python read (checkpoint_checksums.py),
// shards and their index, strided and shared storages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/tensor/dtype.h"
#include "model_loader/checkpoint/checkpoint_tensors.h"
#include "nlohmann/json.hpp"
#include "tests/unit/model_loader_checkpoint/torch_builder.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const fs::path kData = fs::path(KOINE_SOURCE_DIR) / "tests/data";

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << path;
  return text.str();
}

void WriteFile(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// A folder of its own for each test.
class Checkpoint : public testing::Test {
 protected:
  Checkpoint()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("koine_checkpoint_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Checkpoint() override { fs::remove_all(folder_); }

  std::string Fault(CheckpointKind kind = CheckpointKind::kModel) const {
    const auto opened = CheckpointTensors::Open(folder_.string(), kind);
    return opened.ok() ? "opened" : std::string(opened.status().message());
  }
  void Shard(const std::string& file, const std::string& tensor, float value) const {
    SafetensorsWriter writer;
    const std::vector<float> values = {value, value};
    ASSERT_TRUE(writer.AddF32(tensor, kernels::DType::kF32, {2}, values).ok());
    ASSERT_TRUE(writer.Write((folder_ / file).string()).ok());
  }
  void Index(const std::string& text) const { WriteFile(folder_ / "model.safetensors.index.json", text); }

  const fs::path folder_;
};

class Reference : public testing::TestWithParam<std::string> {};

TEST_P(Reference, EveryTensorHasTheBytesAndValuesThatPythonReads) {
  const std::string folder = GetParam();
  const CheckpointKind kind =
      folder.find("lora") != std::string::npos ? CheckpointKind::kAdapter : CheckpointKind::kModel;
  const auto checkpoint = CheckpointTensors::Open((kData / folder).string(), kind);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->warnings(), IsEmpty());
  EXPECT_TRUE((*checkpoint)->VerifyChecksums().ok());
  const json expected = json::parse(ReadFile(kData / "checkpoint_checksums.json"))[folder];
  ASSERT_GT(expected.size(), 20u);
  ASSERT_EQ((*checkpoint)->tensors().size(), expected.size());
  for (const auto& [name, values] : expected.items()) {
    const CheckpointTensor* tensor = (*checkpoint)->Find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(Name(tensor->type), values["dtype"].get<std::string>()) << name;
    EXPECT_EQ(tensor->shape, values["shape"].get<std::vector<int64_t>>()) << name;
    std::vector<uint8_t> bytes(static_cast<size_t>(tensor->elements()) * SizeOf(tensor->type));
    ASSERT_TRUE(tensor->ReadBytes(0, tensor->rows(), absl::MakeSpan(bytes)).ok());
    EXPECT_EQ(crc32(0, bytes.data(), static_cast<uInt>(bytes.size())), values["crc32"].get<uint32_t>()) << name;
    if (!tensor->is_float()) continue;
    // Row by row, as an importer converts.
    std::vector<float> row(static_cast<size_t>(tensor->row_elements()));
    double sum = 0, squares = 0;
    for (int64_t r = 0; r < tensor->rows(); ++r) {
      ASSERT_TRUE(tensor->ReadRows(r, 1, absl::MakeSpan(row)).ok());
      for (const float value : row) {
        sum += value;
        squares += static_cast<double>(value) * value;
      }
    }
    EXPECT_NEAR(sum, values["sum"].get<double>(), 1e-9 * (1 + squares)) << name;
    EXPECT_NEAR(squares, values["sum_of_squares"].get<double>(), 1e-9 * (1 + squares)) << name;
    tensor->DropPages();
    ASSERT_TRUE(tensor->ReadBytes(0, tensor->rows(), absl::MakeSpan(bytes)).ok());
    EXPECT_EQ(crc32(0, bytes.data(), static_cast<uInt>(bytes.size())), values["crc32"].get<uint32_t>()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, Reference,
                         testing::Values("hf-nllb", "hf-m2m100", "hf-mbart50", "hf-mt5", "hf-t5", "hf-marian",
                                         "hf-xlmr", "hf-bert", "hf-roberta", "hf-nllb-lora-de", "hf-nllb-lora-fr"),
                         [](const auto& test) {
                           std::string name = test.param.substr(3);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST_F(Checkpoint, TiedTablesAreSeen) {
  const auto bart = CheckpointTensors::Open((kData / "hf-mbart50").string());
  ASSERT_TRUE(bart.ok());
  const CheckpointTensor* shared = (*bart)->Find("model.shared.weight");
  const CheckpointTensor* encoder = (*bart)->Find("model.encoder.embed_tokens.weight");
  ASSERT_NE(shared, nullptr);
  ASSERT_NE(encoder, nullptr);
  EXPECT_TRUE(SameValues(*shared, *encoder));  // stored twice in this file
  EXPECT_FALSE(SameStorage(*shared, *encoder));
  const auto mt5 = CheckpointTensors::Open((kData / "hf-mt5").string());
  ASSERT_TRUE(mt5.ok());
  EXPECT_FALSE(SameValues(*(*mt5)->Find("shared.weight"), *(*mt5)->Find("lm_head.weight")));

  // The same storage by two names, as torch.save writes tied parameters.
  WriteFile(folder_ / "pytorch_model.bin",
            TorchArchive(PickleDict({{"a", Pickled({})}, {"b", Pickled({})}}), {Floats({1, 2, 3, 4, 5, 6})}));
  const auto tied = CheckpointTensors::Open(folder_.string());
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_TRUE(SameStorage(*(*tied)->Find("a"), *(*tied)->Find("b")));
}

std::vector<float> AllOf(const CheckpointTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  EXPECT_TRUE(tensor.ReadRows(0, tensor.rows(), absl::MakeSpan(values)).ok());
  return values;
}

TEST_F(Checkpoint, StridedViewsOfAStorageAreReadInTheirOwnOrder) {
  PickleTensor transposed;
  transposed.shape = {3, 2};
  transposed.strides = {1, 3};
  PickleTensor column;
  column.offset = 1;
  column.shape = {2};
  column.strides = {3};
  PickleTensor expanded;
  expanded.shape = {2, 3};
  expanded.strides = {0, 1};
  PickleTensor scalar;
  scalar.offset = 5;
  scalar.shape = {};
  scalar.strides = {};
  PickleTensor cube;  // rows are 2 x 1 x 1, with a dimension of one element between
  cube.shape = {3, 2, 1};
  cube.strides = {1, 3, 77};
  PickleTensor nothing;
  nothing.shape = {0, 3};
  nothing.strides = {3, 1};
  for (const bool zip64 : {false, true}) {
    ZipOptions options;
    options.zip64 = zip64;
    WriteFile(folder_ / "pytorch_model.bin", TorchArchive(PickleDict({{"plain", Pickled({})},
                                                                      {"transposed", Pickled(transposed)},
                                                                      {"column", Pickled(column)},
                                                                      {"expanded", Pickled(expanded)},
                                                                      {"scalar", Pickled(scalar)},
                                                                      {"cube", Pickled(cube)},
                                                                      {"nothing", Pickled(nothing)}}),
                                                          {Floats({1, 2, 3, 4, 5, 6})}, options));
    const auto opened = CheckpointTensors::Open(folder_.string());
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto find = [&](const char* name) { return *(*opened)->Find(name); };
    EXPECT_THAT(AllOf(find("plain")), ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_TRUE(find("plain").contiguous());
    EXPECT_EQ(find("plain").bytes().size(), 24u);
    EXPECT_THAT(AllOf(find("transposed")), ElementsAre(1, 4, 2, 5, 3, 6));
    EXPECT_FALSE(find("transposed").contiguous());
    EXPECT_THAT(find("transposed").bytes(), IsEmpty());
    EXPECT_THAT(AllOf(find("column")), ElementsAre(2, 5));
    EXPECT_THAT(AllOf(find("expanded")), ElementsAre(1, 2, 3, 1, 2, 3));
    EXPECT_THAT(AllOf(find("scalar")), ElementsAre(6));
    EXPECT_THAT(AllOf(find("cube")), ElementsAre(1, 4, 2, 5, 3, 6));
    EXPECT_THAT(AllOf(find("nothing")), IsEmpty());
    EXPECT_TRUE(SameValues(find("transposed"), find("transposed")));
    EXPECT_FALSE(SameValues(find("transposed"), find("plain")));
    // Some rows only, and requests that do not fit.
    std::vector<float> row(2);
    EXPECT_TRUE(find("transposed").ReadRows(1, 1, absl::MakeSpan(row)).ok());
    EXPECT_THAT(row, ElementsAre(2, 5));
    EXPECT_FALSE(find("transposed").ReadRows(3, 1, absl::MakeSpan(row)).ok());
    EXPECT_FALSE(find("transposed").ReadRows(-1, 1, absl::MakeSpan(row)).ok());
    EXPECT_FALSE(find("transposed").ReadRows(0, 2, absl::MakeSpan(row)).ok());
    EXPECT_FALSE(find("transposed").ReadRows(1, INT64_MAX, absl::MakeSpan(row)).ok());
  }
}

TEST_F(Checkpoint, OtherWaysToWriteADictionaryAreRead) {
  const std::string tensor = Pickled({});
  // OrderedDict with attributes, parameters, torch.Size, protocol 4 with frames and memo.
  const std::string ordered = "\x80\x02" + PickleGlobal("collections", "OrderedDict") + ")R(" + PickleString("w") +
                              PickleGlobal("torch._utils", "_rebuild_parameter") +
                              PickleTuple({tensor, "\x88", PickleGlobal("collections", "OrderedDict") + ")R"}) + "Ru}" +
                              PickleString("_metadata") + PickleGlobal("collections", "OrderedDict") + ")Rsb.";
  const std::string four = "\x80\x04\x95" + Bytes(99, 8) + "}\x94\x8c\x01w\x94" + tensor + "s.";
  for (const std::string& pickle : {ordered, four}) {
    WriteFile(folder_ / "pytorch_model.bin", TorchArchive(pickle, {Floats({1, 2, 3, 4, 5, 6})}));
    const auto opened = CheckpointTensors::Open(folder_.string());
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_NE((*opened)->Find("w"), nullptr);
    EXPECT_THAT(AllOf(*(*opened)->Find("w")), ElementsAre(1, 2, 3, 4, 5, 6));
  }
}

TEST_F(Checkpoint, IntegerBuffersAreListedAndHoldNoFloats) {
  PickleTensor ids;
  ids.storage = "LongStorage";
  ids.storage_elements = 2;
  ids.shape = {1, 2};
  ids.strides = {2, 1};
  WriteFile(folder_ / "pytorch_model.bin",
            TorchArchive(PickleDict({{"position_ids", Pickled(ids)}}), {Bytes(7, 8) + Bytes(8, 8)}));
  const auto opened = CheckpointTensors::Open(folder_.string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const CheckpointTensor& tensor = *(*opened)->Find("position_ids");
  EXPECT_EQ(tensor.type, ElementType::kI64);
  EXPECT_FALSE(tensor.is_float());
  std::vector<float> row(2);
  EXPECT_THAT(std::string(tensor.ReadRows(0, 1, absl::MakeSpan(row)).message()), HasSubstr("I64"));

  // The same in safetensors.
  fs::remove(folder_ / "pytorch_model.bin");
  const std::string header =
      R"({"position_ids":{"dtype":"I64","shape":[1,2],"data_offsets":[0,16]},"odd":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[16,18]}})";
  WriteFile(folder_ / "model.safetensors", Bytes(header.size(), 8) + header + std::string(18, '\0'));
  const auto again = CheckpointTensors::Open(folder_.string());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->Find("position_ids")->type, ElementType::kI64);
  EXPECT_EQ((*again)->Find("odd")->type, ElementType::kOther);
}

// B045.
TEST_F(Checkpoint, MissingShardsAreAllNamed) {
  Shard("model-00001-of-00003.safetensors", "a", 1);
  Index(R"({"metadata": {}, "weight_map": {"a": "model-00001-of-00003.safetensors",
            "b": "model-00002-of-00003.safetensors", "c": "model-00003-of-00003.safetensors"}})");
  EXPECT_THAT(Fault(), HasSubstr("names 3 shards, but model-00002-of-00003.safetensors, "
                                 "model-00003-of-00003.safetensors are missing"));
}

TEST_F(Checkpoint, TensorsInTheWrongShardAreNamed) {
  Shard("model-00001-of-00002.safetensors", "a", 1);
  Shard("model-00002-of-00002.safetensors", "b", 2);
  Index(R"({"weight_map": {"a": "model-00002-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",
            "c": "model-00001-of-00002.safetensors"}})");
  EXPECT_THAT(Fault(), HasSubstr("\"a\" is not in model-00002-of-00002.safetensors but in "
                                 "model-00001-of-00002.safetensors; \"c\" is not in model-00001-of-00002.safetensors"));
}

TEST_F(Checkpoint, WhatNoIndexNamesIsIgnoredWithAWarning) {
  Shard("model-00001-of-00002.safetensors", "a", 1);
  Shard("model-00002-of-00002.safetensors", "b", 2);
  Shard("model-00003-of-00003.safetensors", "c", 3);
  Index(R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
  const auto opened = CheckpointTensors::Open(folder_.string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->tensors().size(), 1u);
  EXPECT_THAT((*opened)->warnings(), ElementsAre(HasSubstr("model-00002-of-00002.safetensors is ignored"),
                                                 HasSubstr("model-00003-of-00003.safetensors is ignored")));
  // A tensor that lies in a shard and in no index.
  Index(R"({"weight_map": {"b": "model-00002-of-00002.safetensors"}})");
  SafetensorsWriter writer;
  const std::vector<float> one = {1};
  ASSERT_TRUE(writer.AddF32("b", kernels::DType::kF32, {1}, one).ok());
  ASSERT_TRUE(writer.AddF32("stray", kernels::DType::kF32, {1}, one).ok());
  ASSERT_TRUE(writer.Write((folder_ / "model-00002-of-00002.safetensors").string()).ok());
  const auto again = CheckpointTensors::Open(folder_.string());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->Find("stray"), nullptr);
  EXPECT_THAT((*again)->warnings(), testing::Contains(HasSubstr("tensor \"stray\" is ignored")));
}

TEST_F(Checkpoint, ShardsOfTorchFilesAreRead) {
  WriteFile(folder_ / "pytorch_model-00001-of-00002.bin",
            TorchArchive(PickleDict({{"a", Pickled({})}}), {Floats({1, 2, 3, 4, 5, 6})}));
  WriteFile(folder_ / "pytorch_model-00002-of-00002.bin",
            TorchArchive(PickleDict({{"b", Pickled({})}}), {Floats({6, 5, 4, 3, 2, 1})}));
  WriteFile(folder_ / "pytorch_model.bin.index.json",
            R"({"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}})");
  const auto opened = CheckpointTensors::Open(folder_.string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(AllOf(*(*opened)->Find("b")), ElementsAre(6, 5, 4, 3, 2, 1));
  EXPECT_EQ((*opened)->files().size(), 2u);
}

TEST_F(Checkpoint, SafetensorsComeFirstAndTheOthersAreMentioned) {
  Shard("model.safetensors", "a", 1);
  WriteFile(folder_ / "pytorch_model.bin", "rubbish");
  const auto opened = CheckpointTensors::Open(folder_.string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT((*opened)->warnings(), ElementsAre(HasSubstr("pytorch_model.bin is ignored")));
}

TEST_F(Checkpoint, BrokenIndexesAreRefused) {
  const auto fault = [&](const std::string& text) {
    Index(text);
    return Fault();
  };
  EXPECT_THAT(fault(""), HasSubstr("an empty file"));
  EXPECT_THAT(fault("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git-lfs pointer"));
  EXPECT_THAT(fault("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(fault("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(fault("{}"), HasSubstr("weight_map must be"));
  EXPECT_THAT(fault(R"({"weight_map": {}})"), HasSubstr("weight_map must be"));
  EXPECT_THAT(fault(R"({"weight_map": {"a": 1}})"), HasSubstr("must be a string"));
  EXPECT_THAT(fault(R"({"weight_map": {"a": "x", "a": "y"}})"), HasSubstr("occurs twice"));
  EXPECT_THAT(fault(R"({"weight_map": {"a": "model.txt"}})"), HasSubstr("which is no .safetensors file"));
  for (const char* path : {"../secret", "/etc/passwd", "a/b.safetensors", "..", ""}) {
    EXPECT_THAT(fault(std::string(R"({"weight_map": {"a": ")") + path + "\"}}"), HasSubstr("no plain name")) << path;
  }
}

TEST_F(Checkpoint, OtherThingsAreNamedWithWhatToGiveInstead) {
  EXPECT_THAT(Fault(), HasSubstr("no weights; one of model.safetensors, model.safetensors.index.json"));
  EXPECT_THAT(Fault(CheckpointKind::kAdapter), HasSubstr("adapter_model.safetensors, adapter_model.bin"));
  const auto with = [&](const std::string& file, const std::string& bytes) {
    fs::create_directories((folder_ / file).parent_path());
    WriteFile(folder_ / file, bytes);
    const std::string fault = Fault();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    return fault;
  };
  EXPECT_THAT(with("model.bin", Bytes(6, 4) + Bytes(16, 2) + std::string("TransformerSpec\0", 16)),
              HasSubstr("a CTranslate2 model: give the Hugging Face folder"));
  EXPECT_THAT(with("tf_model.h5", "\x89HDF"), HasSubstr("TensorFlow weights only"));
  EXPECT_THAT(with("flax_model.msgpack", "x"), HasSubstr("Flax weights only"));
  EXPECT_THAT(with("model-q4.gguf", "GGUF"), HasSubstr("a GGUF file"));
  EXPECT_THAT(with("encoder.onnx", "x"), HasSubstr("an ONNX model"));
  EXPECT_THAT(with("translate-en_de.argosmodel", "PK"), HasSubstr("an Argos Translate package"));
  EXPECT_THAT(with("adapter_config.json", "{}"), HasSubstr("a PEFT adapter"));
  EXPECT_THAT(with("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git-lfs pointer"));
  EXPECT_THAT(with("pytorch_model.bin", "version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git-lfs pointer"));
  EXPECT_THAT(with("pytorch_model.bin", ""), HasSubstr("an empty file"));
  fs::create_directories(folder_ / "model");
  WriteFile(folder_ / "metadata.json", "{}");
  EXPECT_THAT(with("model/model.bin", "x"), HasSubstr("an Argos Translate package"));
  const std::string package = (folder_ / "p.argosmodel").string();
  WriteFile(package, "PK");
  EXPECT_THAT(std::string(CheckpointTensors::Open(package).status().message()),
              HasSubstr("an Argos Translate package"));
  EXPECT_EQ(CheckpointTensors::Open((folder_ / "none").string()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(DescribeForeignModel((kData / "hf-nllb").string()), IsEmpty());
}

TEST_F(Checkpoint, FlippedBitsInAStorageAreFoundOnRequest) {
  std::string bytes = TorchArchive(PickleDict({{"a", Pickled({})}}), {Floats({1, 2, 3, 4, 5, 6})});
  const size_t at = bytes.find(Floats({3, 4}));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  WriteFile(folder_ / "pytorch_model.bin", bytes);
  const auto opened = CheckpointTensors::Open(folder_.string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->VerifyChecksums().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string((*opened)->VerifyChecksums().message()), HasSubstr("\"m/data/0\""));
}

}  // namespace
}  // namespace koine::model_loader
