#include "model_loader/safetensors/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace koine::model_loader {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// header length | header | data, written out by hand.
std::string File(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  for (size_t i = 0; i < data_bytes; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> Parse(const std::string& bytes) {
  return SafetensorsFile::Parse(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()),
                                "some/model.safetensors");
}

std::string Fault(const std::string& bytes) {
  const auto file = Parse(bytes);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << file.status();
  EXPECT_THAT(std::string(file.status().message()), StartsWith("some/model.safetensors: "));
  return std::string(file.status().message());
}

std::string HeaderFault(const std::string& header, size_t data_bytes = 0) { return Fault(File(header, data_bytes)); }

TEST(Safetensors, ReadsTensorsWithTheirTypesShapesAndBytes) {
  const std::string bytes = File(R"({"__metadata__":{"format":"koine","empty":""},)"
                                 R"("b":{"dtype":"F16","shape":[],"data_offsets":[24,26]},)"
                                 R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                 R"("none":{"data_offsets":[26,26],"shape":[4,0],"dtype":"BF16"},)"
                                 R"("ids":{"dtype":"I32","shape":[1],"data_offsets":[26,30]},)"
                                 R"("q":{"dtype":"I8","shape":[3],"data_offsets":[30,33]}}   )",
                                 33);
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 5U);
  const TensorView* a = (*file)->Find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, kernels::DType::kF32);
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a->elements(), 6);
  ASSERT_EQ(a->data.size(), 24U);
  EXPECT_EQ(a->data[23], 23);
  EXPECT_EQ((*file)->Find("b")->elements(), 1) << "no dimensions: a scalar";
  EXPECT_EQ((*file)->Find("b")->data[0], 24);
  EXPECT_EQ((*file)->Find("none")->elements(), 0);
  EXPECT_EQ((*file)->Find("ids")->dtype, kernels::DType::kI32);
  EXPECT_EQ((*file)->Find("q")->data[2], 32);
  EXPECT_EQ((*file)->Find("c"), nullptr);
  EXPECT_EQ((*file)->metadata().at("format"), "koine");
  EXPECT_EQ((*file)->name(), "some/model.safetensors");
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  const auto file = Parse(File("{}", 0));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->tensors().empty());
}

TEST(Safetensors, NamesWhatAForeignFileLooksLike) {
  EXPECT_THAT(Fault(""), HasSubstr("empty file (0 bytes)"));
  EXPECT_THAT(Fault("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2468\n"),
              AllOf(HasSubstr("git-lfs pointer"), HasSubstr("git lfs pull")));
  EXPECT_THAT(Fault(std::string("PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00", 12)), HasSubstr("zip archive"));
  EXPECT_THAT(Fault("\x1f\x8b\x08 0000000000"), HasSubstr("gzip"));
  EXPECT_THAT(Fault("<!DOCTYPE html>\n<html><body>404"), HasSubstr("HTML page"));
  EXPECT_THAT(Fault("\n  <HTML><body>Not found"), HasSubstr("HTML page"));
  EXPECT_THAT(Fault("\x80\x02}q\x01(X\x05 000 0000000"), HasSubstr("Python pickle"));
  EXPECT_THAT(Fault("GGUF\x03 0000000000000"), HasSubstr("GGUF"));
  EXPECT_THAT(Fault("{\"a\": 1, \"b\": 2}"), HasSubstr("JSON text"));
  EXPECT_THAT(Fault("this is a note to myself"), HasSubstr("a text file"));
  EXPECT_THAT(Fault("abc"), HasSubstr("text file"));
  for (const char* foreign : {"", "PK\x03\x04 0000000", "version https://git-lfs.github.com/spec/v1\n"}) {
    EXPECT_THAT(Fault(foreign), HasSubstr("not a safetensors file"));
  }
}

TEST(Safetensors, RefusesHeaderLengthsThatTheFileDoesNotHold) {
  std::string bytes = File("{}", 0);
  bytes[0] = 3;
  EXPECT_THAT(Fault(bytes), AllOf(HasSubstr("3 bytes"), HasSubstr("cut off")));
  bytes = std::string(16, '\xff');
  EXPECT_THAT(Fault(bytes), HasSubstr("18446744073709551615"));
  const uint64_t over = SafetensorsFile::kMaxHeaderBytes + 1;
  std::memcpy(bytes.data(), &over, 8);
  EXPECT_THAT(Fault(bytes), HasSubstr("at most 100000000"));
  EXPECT_THAT(Fault(std::string(8, '\0')), HasSubstr("does not start with '{'"));
  EXPECT_THAT(Fault(std::string("\x01\0\0\0\0\0\0\0[", 9)), HasSubstr("does not start with '{'"));
}

TEST(Safetensors, RefusesBrokenHeaders) {
  EXPECT_THAT(HeaderFault("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(HeaderFault("{} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(HeaderFault("{\"a\":{\"dtype\":\"F32\xff\"}}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(HeaderFault(R"({"a":3})"), HasSubstr("\"a\" must be an object, not a number"));
  EXPECT_THAT(HeaderFault(R"({"a":[]})"), HasSubstr("not an array"));
  EXPECT_THAT(HeaderFault(R"({"__metadata__":{"a":1}})"), HasSubstr("must be a string"));
  EXPECT_THAT(HeaderFault(R"({"__metadata__":{"a":{}}})"), HasSubstr("must be a string"));
  EXPECT_THAT(HeaderFault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4),
              HasSubstr("unknown key \"x\""));
}

TEST(Safetensors, RefusesIncompleteOrMistypedEntries) {
  EXPECT_THAT(HeaderFault(R"({"a":{}})"), HasSubstr("dtype is missing"));
  EXPECT_THAT(HeaderFault(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})"), HasSubstr("shape is missing"));
  EXPECT_THAT(HeaderFault(R"({"a":{"dtype":"F32","shape":[1]}})"), HasSubstr("data_offsets is missing"));
  EXPECT_THAT(HeaderFault(R"({"a":{"dtype":1}})"), HasSubstr("dtype must not be a number"));
  EXPECT_THAT(HeaderFault(R"({"a":{"shape":[-1]}})"), HasSubstr("not a negative number"));
  EXPECT_THAT(HeaderFault(R"({"a":{"shape":[1.5]}})"), HasSubstr("shape must hold non-negative integers"));
  EXPECT_THAT(HeaderFault(R"({"a":{"shape":[[1]]}})"), HasSubstr("not an array"));
  EXPECT_THAT(HeaderFault(R"({"a":{"shape":[18446744073709551616]}})"), HasSubstr("shape must hold"));
  EXPECT_THAT(HeaderFault(R"({"a":{"shape":[9223372036854775808]}})"), HasSubstr("over 2^63"));
  EXPECT_THAT(HeaderFault(R"({"a":{"data_offsets":[0]}})"), HasSubstr("missing"));
  EXPECT_THAT(HeaderFault(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0]}})"), HasSubstr("two numbers"));
  EXPECT_THAT(HeaderFault(R"({"a":{"data_offsets":[0,0,0]}})"), HasSubstr("more than two"));
  EXPECT_THAT(HeaderFault(R"({"a":{"shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}})"), HasSubstr("dimensions"));
}

TEST(Safetensors, NamesUnsupportedTypesAndTheirTensor) {
  for (const char* dtype : {"F64", "I64", "BOOL", "U8", "F8_E4M3", "f32", ""}) {
    EXPECT_THAT(
        HeaderFault(std::string(R"({"layer.weight":{"dtype":")") + dtype + R"(","shape":[1],"data_offsets":[0,8]}})",
                    8),
        AllOf(HasSubstr("layer.weight"), HasSubstr(std::string("\"") + dtype + "\" is not supported")));
  }
}

TEST(Safetensors, RefusesNamesAndKeysThatOccurTwice) {
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string b = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})";
  EXPECT_THAT(HeaderFault("{" + a + "," + b + "}", 8), AllOf(HasSubstr("\"a\""), HasSubstr("twice")));
  EXPECT_THAT(HeaderFault(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
              HasSubstr("twice"));
  EXPECT_THAT(HeaderFault(R"({"__metadata__":{},"__metadata__":{}})"), HasSubstr("twice"));
  EXPECT_THAT(HeaderFault(R"({"__metadata__":{"k":"1","k":"2"}})"), HasSubstr("twice"));
  // The same name written in two ways is the same name.
  EXPECT_THAT(HeaderFault("{" + a + R"(,"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
              HasSubstr("twice"));
}

TEST(Safetensors, RefusesOffsetsThatDoNotFit) {
  const auto one = [](const std::string& shape, const std::string& offsets, size_t data_bytes) {
    return HeaderFault(R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", data_bytes);
  };
  EXPECT_THAT(one("[1]", "[4,0]", 8), HasSubstr("run backwards"));
  EXPECT_THAT(one("[2]", "[0,8]", 4), AllOf(HasSubstr("reach beyond the 4 data bytes"), HasSubstr("cut off")));
  EXPECT_THAT(one("[2]", "[0,4]", 4), HasSubstr("takes 8 bytes"));
  EXPECT_THAT(one("[1]", "[0,18446744073709551615]", 4), HasSubstr("reach beyond"));
  EXPECT_THAT(one("[1]", "[0,4]", 5), HasSubstr("1 trailing bytes"));
  EXPECT_THAT(one("[1]", "[4,8]", 8), HasSubstr("hole"));
}

TEST(Safetensors, RefusesProductsThatOverflow) {
  // 2^32 * 2^32 is 0 in 64 bits, and 2^62 floats are 0 bytes in 64 bits: both would pass an unchecked product.
  for (const char* shape :
       {"[4294967296,4294967296]", "[4611686018427387904]", "[9223372036854775807,2]", "[65536,65536,65536,65536]"}) {
    EXPECT_THAT(HeaderFault(std::string(R"({"a":{"dtype":"F32","shape":)") + shape + R"(,"data_offsets":[0,0]}})"),
                HasSubstr("too large"))
        << shape;
  }
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  const auto two = [](const std::string& first, const std::string& second, size_t data_bytes) {
    return HeaderFault(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + first +
                           R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + second + "}}",
                       data_bytes);
  };
  EXPECT_THAT(two("[0,8]", "[4,12]", 12), HasSubstr("overlap"));
  EXPECT_THAT(two("[0,8]", "[0,8]", 8), HasSubstr("overlap"));
  EXPECT_THAT(two("[0,8]", "[12,20]", 20), HasSubstr("hole"));
}

TEST(Safetensors, SurvivesDepthBombs) {
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(HeaderFault("{\"a\":" + deep), HasSubstr("must be an object"));
  EXPECT_THAT(HeaderFault("{\"a\":{\"shape\":" + deep), HasSubstr("not an array"));
  std::string objects = "{\"a\":{\"dtype\":";
  for (int i = 0; i < 200'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(HeaderFault(objects), HasSubstr("must not be an object"));
}

TEST(Safetensors, EscapesHostileNamesInMessages) {
  const std::string fault = HeaderFault(R"({"\u001b[31m\n)" + std::string(5000, 'x') + R"(":{}})");
  EXPECT_EQ(fault.find('\x1b'), std::string::npos);
  EXPECT_EQ(fault.find('\n'), std::string::npos);
  EXPECT_LT(fault.size(), 400U);
}

TEST(Safetensors, RandomBytesNeverCrash) {
  const std::string good = File(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24);
  std::mt19937 random(3);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    bytes[random() % 70] = static_cast<char>(random());
    const auto file = Parse(bytes);
    if (file.ok()) {
      ++accepted;
      for (const auto& [name, tensor] : (*file)->tensors()) {
        EXPECT_EQ(tensor.data.size(), static_cast<size_t>(tensor.elements()) * kernels::SizeOf(tensor.dtype));
      }
    }
  }
  EXPECT_LT(accepted, 20'000);
}

class Files : public testing::Test {
 protected:
  Files() {
    std::string pattern = testing::TempDir() + "safetensorsXXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~Files() override { std::filesystem::remove_all(directory_); }
  std::string Put(const std::string& name, const std::string& bytes) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string directory_;
};

TEST_F(Files, OpensAMappedFile) {
  const std::string path = Put("a.safetensors", File(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 4));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->name(), path);
  EXPECT_EQ((*file)->Find("a")->data[3], 3);
  (*file)->DropPages();
  EXPECT_EQ((*file)->Find("a")->data[3], 3) << "dropped pages come back from the file";
}

TEST_F(Files, NamesThePathOfWhatCannotBeOpened) {
  const auto missing = SafetensorsFile::Open(directory_ + "/none");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(directory_ + "/none"));
  EXPECT_EQ(SafetensorsFile::Open(directory_).status().code(), absl::StatusCode::kInvalidArgument);
  const std::string empty = Put("empty", "");
  EXPECT_THAT(std::string(SafetensorsFile::Open(empty).status().message()),
              AllOf(HasSubstr(empty), HasSubstr("0 bytes")));
  const std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsFile::Open(pipe).status().code(), absl::StatusCode::kInvalidArgument) << "and does not hang";
}

}  // namespace
}  // namespace koine::model_loader
