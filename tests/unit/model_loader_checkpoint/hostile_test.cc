// .bin files that lie. Each gives one error that says what is wrong; none is executed, none makes us allocate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "model_loader/checkpoint/torch_file.h"
#include "tests/unit/model_loader_checkpoint/torch_builder.h"

namespace koine::model_loader {
namespace {

using testing::HasSubstr;

std::string Fault(const std::string& bytes) {
  // A copy without slack, so that a read behind the end is the sanitizer's to find.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  const auto file = TorchFile::Parse(exact, "model.bin");
  if (file.ok()) return "accepted";
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(file.status().message());
  EXPECT_THAT(message, testing::StartsWith("model.bin: "));
  EXPECT_LT(message.size(), 1000u);
  EXPECT_EQ(message.find('\n'), std::string::npos);
  return message;
}

const std::string& Values() {
  static const auto& values = *new std::string(Floats({1, 2, 3, 4, 5, 6}));
  return values;
}

std::string WithPickle(const std::string& pickle) { return Fault(TorchArchive(pickle, {Values()})); }
std::string WithTensor(const PickleTensor& tensor) { return WithPickle(PickleDict({{"w", Pickled(tensor)}})); }

TEST(HostileTorchFile, TheBuilderWritesWhatIsAccepted) {
  EXPECT_EQ(WithTensor({}), "accepted");
  EXPECT_EQ(WithPickle(PickleDict({})), "accepted");
  ZipOptions options;
  options.zip64 = true;
  EXPECT_EQ(Fault(TorchArchive(PickleDict({{"w", Pickled({})}}), {Values()}, options)), "accepted");
}

TEST(HostileTorchFile, NoNamesButThoseOfTensors) {
  EXPECT_THAT(WithPickle("\x80\x02" + PickleGlobal("os", "system") + PickleTuple({PickleString("id")}) + "R."),
              HasSubstr("the pickle contains os.system: not a tensor, refused"));
  EXPECT_THAT(WithPickle("\x80\x02" + PickleGlobal("posix", "system") + "."), HasSubstr("posix.system"));
  EXPECT_THAT(WithPickle("\x80\x02" + PickleGlobal("builtins", "eval") + "."), HasSubstr("builtins.eval"));
  EXPECT_THAT(WithPickle("\x80\x02" + PickleGlobal("torch.storage", "_load_from_bytes") + "."),
              HasSubstr("torch.storage._load_from_bytes"));
  EXPECT_THAT(WithPickle("\x80\x04" + PickleString("os") + PickleString("system") + "\x93."), HasSubstr("os.system"));
  EXPECT_THAT(WithPickle("\x80\x02" + PickleGlobal("torch", "FloatStorage.fromfile") + "."), HasSubstr("refused"));
  // INST, OBJ, NEWOBJ, NEWOBJ_EX, EXT1, PERSID, BYTEARRAY8: never needed.
  for (const char opcode : std::string("io\x81\x92\x82P\x96")) {
    EXPECT_THAT(WithPickle("\x80\x02(" + std::string(1, opcode) + "x\ny\n."),
                HasSubstr("which no dictionary of tensors"));
  }
}

TEST(HostileTorchFile, CallsWithOtherArgumentsAreRefused) {
  const std::string rebuild = PickleGlobal("torch._utils", "_rebuild_tensor_v2");
  EXPECT_THAT(WithPickle("\x80\x02" + rebuild + ")R."), HasSubstr("arguments that make no tensor"));
  EXPECT_THAT(WithPickle("\x80\x02" + PickleGlobal("torch", "FloatStorage") + ")R."), HasSubstr("arguments that"));
  EXPECT_THAT(WithPickle("\x80\x02" + PickleGlobal("collections", "OrderedDict") + "K\x01\x85R."),
              HasSubstr("arguments that"));
  EXPECT_THAT(WithPickle("\x80\x02}K\x01\x62."), HasSubstr("sets the state"));
  EXPECT_THAT(WithPickle("\x80\x02K\x01K\x02R."), HasSubstr("broken"));
  EXPECT_THAT(WithPickle("\x80\x02K\x01Q."), HasSubstr("storage's description"));
}

TEST(HostileTorchFile, OnlyADictionaryOfTensorsIsOne) {
  EXPECT_THAT(WithPickle("\x80\x02K\x01."), HasSubstr("is an integer, not a dictionary"));
  EXPECT_THAT(WithPickle(PickleDict({{"epoch", "K\x01"}})), HasSubstr("\"epoch\" is an integer, not a tensor"));
  EXPECT_THAT(WithPickle(PickleDict({{"state_dict", "}"}})), HasSubstr("\"state_dict\" is a dictionary, not a tensor"));
  EXPECT_THAT(WithPickle("\x80\x02}K\x01" + Pickled({}) + "s."), HasSubstr("name is an integer"));
  EXPECT_THAT(WithPickle(PickleDict({{"w", Pickled({})}, {"w", Pickled({})}})), HasSubstr("occurs twice"));
  EXPECT_THAT(WithPickle(PickleDict({{"", Pickled({})}})), HasSubstr("has 0 bytes"));
  EXPECT_THAT(WithPickle("\x80\x02}."
                         "x"),
              HasSubstr("after its end"));
  EXPECT_THAT(WithPickle("\x80\x02}}."), HasSubstr("left over"));
  EXPECT_THAT(WithPickle("\x80\x01}."), HasSubstr("protocol 1"));
}

TEST(HostileTorchFile, BrokenPicklesEnd) {
  for (const char* pickle : {"", "\x80", "\x80\x02", "\x80\x02}", "\x80\x02t.", "\x80\x02u.", "\x80\x02h\x05.",
                             "\x80\x02q\x01.", "\x80\x02(q\x01.", "\x80\x02X\xff\xff\xff\xffx",
                             "\x80\x02"
                             "cos",
                             "\x80\x02\x85.", "\x80\x02]K\x01s.", "\x80\x02}(K\x01u.", "\x80\x02."}) {
    EXPECT_THAT(WithPickle(pickle), testing::AnyOf(HasSubstr("broken or cut off"), HasSubstr("left over"))) << pickle;
  }
  EXPECT_THAT(WithPickle("\x80\x02\x8a\xff."), HasSubstr("integer of 255 bytes"));
}

TEST(HostileTorchFile, DeepNestingAndManyValuesEnd) {
  std::string nested = "\x80\x02";
  for (int i = 0; i < 900'000; ++i) nested += "]";
  for (int i = 0; i < 899'999; ++i) nested += "a";
  EXPECT_THAT(WithPickle(nested + "."), HasSubstr("is a list, not a dictionary"));
  EXPECT_THAT(WithPickle("\x80\x02" + std::string(2'000'000, '}')), HasSubstr("more than 1000000 values"));
  EXPECT_THAT(WithPickle("\x80\x02" + std::string(2'000'000, '(')), HasSubstr("more than 1000000 values"));
  std::string recalls = "\x80\x02Nq";
  recalls.push_back('\0');
  for (int i = 0; i < 1'100'000; ++i) recalls += std::string("h\0", 2);
  EXPECT_THAT(WithPickle(recalls), HasSubstr("more than 1000000 values"));
  // A list that holds itself is a value like others.
  EXPECT_THAT(WithPickle("\x80\x02]q\x01h\x01"
                         "a."),
              HasSubstr("is a list"));
}

TEST(HostileTorchFile, ElementsStayInTheirStorage) {
  PickleTensor tensor;
  tensor.offset = 1;
  EXPECT_THAT(WithTensor(tensor), HasSubstr("last element is number 6 of a storage of 6"));
  tensor = {};
  tensor.shape = {3, 3};
  EXPECT_THAT(WithTensor(tensor), HasSubstr("more elements than the 6"));
  tensor = {};
  tensor.strides = {4, 1};
  EXPECT_THAT(WithTensor(tensor), HasSubstr("last element is number 6"));
  tensor = {};
  tensor.strides = {INT64_MAX, INT64_MAX};
  EXPECT_THAT(WithTensor(tensor), HasSubstr("too large for 63 bits"));
  tensor = {};
  tensor.offset = INT64_MAX;
  EXPECT_THAT(WithTensor(tensor), HasSubstr("too large for 63 bits"));
  tensor = {};
  tensor.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(WithTensor(tensor), HasSubstr("too large for 63 bits"));
  tensor.shape = {0, int64_t{1} << 40, int64_t{1} << 40};
  tensor.strides = {0, 0, 0};
  EXPECT_THAT(WithTensor(tensor), HasSubstr("too large for 63 bits"));
  tensor = {};
  tensor.shape = {int64_t{1} << 40};
  tensor.strides = {0};  // expanded: a terabyte out of one number
  EXPECT_THAT(WithTensor(tensor), HasSubstr("more elements than"));
  tensor = {};
  tensor.shape = {-1, 3};
  EXPECT_THAT(WithTensor(tensor), HasSubstr("numbers of 0 or more"));
  tensor = {};
  tensor.strides = {3, -1};
  EXPECT_THAT(WithTensor(tensor), HasSubstr("numbers of 0 or more"));
  tensor = {};
  tensor.strides = {1};
  EXPECT_THAT(WithTensor(tensor), HasSubstr("2 dimensions but 1 strides"));
  tensor.shape = tensor.strides = std::vector<int64_t>(17, 1);
  EXPECT_THAT(WithTensor(tensor), HasSubstr("at most 16"));
  tensor = {};
  tensor.shape = {0};
  tensor.strides = {1};
  tensor.offset = 7;
  EXPECT_THAT(WithTensor(tensor), HasSubstr("begins behind its storage"));
}

TEST(HostileTorchFile, StoragesHaveTheBytesThatThePickleSays) {
  PickleTensor tensor;
  tensor.key = "9";
  EXPECT_THAT(WithTensor(tensor), HasSubstr("\"data/9\", are missing"));
  tensor.key = "../0";
  EXPECT_THAT(WithTensor(tensor), HasSubstr("are missing"));
  tensor = {};
  tensor.storage_elements = 7;
  EXPECT_THAT(WithTensor(tensor), HasSubstr("its storage of 7 F32 has 24 bytes"));
  tensor.storage_elements = int64_t{1} << 62;
  EXPECT_THAT(WithTensor(tensor), HasSubstr("has 24 bytes"));
  tensor.storage_elements = -1;
  EXPECT_THAT(WithTensor(tensor), HasSubstr("storage's description"));
  tensor = {};
  tensor.storage = "HalfStorage";
  EXPECT_THAT(WithTensor(tensor), HasSubstr("its storage of 6 F16 has 24 bytes"));
}

TEST(HostileTorchFile, CutAnywhereItIsRefused) {
  for (const char* name : {"hf-marian", "hf-bert"}) {
    std::ifstream stream(std::string(KOINE_SOURCE_DIR) + "/tests/data/" + name + "/pytorch_model.bin",
                         std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    const std::string bytes = text.str();
    ASSERT_GT(bytes.size(), 100'000u);
    ASSERT_EQ(Fault(bytes), "accepted");
    for (size_t i = 0; i < 20; ++i) EXPECT_NE(Fault(bytes.substr(0, bytes.size() * i / 20)), "accepted") << i;
    for (size_t less = 1; less <= 22; ++less) EXPECT_NE(Fault(bytes.substr(0, bytes.size() - less)), "accepted");
    EXPECT_NE(Fault(bytes + "x"), "accepted");
    EXPECT_NE(Fault("x" + bytes), "accepted");
  }
  const std::string small = TorchArchive(PickleDict({{"w", Pickled({})}}), {Values()});
  for (size_t size = 0; size < small.size(); ++size) EXPECT_NE(Fault(small.substr(0, size)), "accepted") << size;
}

TEST(HostileTorchFile, AnyOneByteChangedIsReadSafely) {
  for (const bool zip64 : {false, true}) {
    ZipOptions options;
    options.zip64 = zip64;
    const std::string good = TorchArchive(PickleDict({{"w", Pickled({})}}), {Values()}, options);
    int refused = 0;
    for (size_t at = 0; at < good.size(); ++at) {
      for (const char change : {'\x01', '\x80', '\xff'}) {
        std::string bytes = good;
        bytes[at] = static_cast<char>(bytes[at] ^ change);
        const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
        const auto file = TorchFile::Parse(exact, "m");
        refused += file.ok() ? 0 : 1;
        if (!file.ok()) continue;
        for (const auto& [name, tensor] : (*file)->tensors()) {
          std::vector<uint8_t> copy(static_cast<size_t>(tensor.elements()) * SizeOf(tensor.type));
          EXPECT_TRUE(tensor.ReadBytes(0, tensor.rows(), absl::MakeSpan(copy)).ok());
        }
      }
    }
    EXPECT_GT(refused, static_cast<int>(good.size()));
  }
}

TEST(HostileTorchFile, LyingDirectoriesAreRefused) {
  const std::vector<Member> members = {{"m/data.pkl", PickleDict({})}, {"m/data/0", Values()}};
  ZipOptions options;
  options.count = 3;
  EXPECT_THAT(Fault(Zip(members, options)), HasSubstr("broken"));
  options.count = 1;
  EXPECT_THAT(Fault(Zip(members, options)), HasSubstr("directory ends at"));
  options.count = 60'000;
  EXPECT_THAT(Fault(Zip(members, options)), HasSubstr("announces 60000 members"));
  options = {};
  options.zip64 = true;
  options.count = INT64_MAX;
  EXPECT_THAT(Fault(Zip(members, options)), HasSubstr("at most 200000"));
  options = {};
  options.directory = 0;
  EXPECT_THAT(Fault(Zip(members, options)), HasSubstr("does not end where"));
  options.directory = 0x7fffffff;
  EXPECT_THAT(Fault(Zip(members, options)), HasSubstr("does not end where"));
}

TEST(HostileTorchFile, OverlappingMembersAreRefused) {
  // Two entries of the directory, both for the same bytes (as zip bombs do).
  std::string zip = Zip({{"m/data.pkl", PickleDict({})}, {"m/data/0", "abcd"}, {"m/data/1", "abcd"}});
  const size_t second = zip.find("m/data/0", zip.find("PK\x01\x02"));
  const size_t third = zip.find("m/data/1", second);
  ASSERT_NE(third, std::string::npos);
  zip.replace(third - 4, 4, zip.substr(second - 4, 4));  // the place of the local header
  EXPECT_THAT(Fault(zip), HasSubstr("headers of \"m/data/1\" disagree"));
  // With the same name in the local header it is an overlap.
  std::string inner = Zip({{"m/data.pkl", PickleDict({})}, {"m/data/0", "abcd"}});
  const size_t local = inner.find("m/data/0") - 30;
  std::string nested =
      Zip({{"m/data.pkl", PickleDict({})}, {"m/data/1", inner.substr(local, 30 + 8 + 4 + 4)}, {"m/data/0", "abcd"}});
  const size_t entry = nested.find("m/data/0", nested.find("PK\x01\x02"));
  const size_t inside = nested.find("m/data/0") - 30;
  nested.replace(entry - 4, 4, Bytes(inside, 4));
  EXPECT_THAT(Fault(nested), HasSubstr("members overlap"));
}

TEST(HostileTorchFile, PathsCompressionAndEncryptionAreRefused) {
  for (const char* name : {"../data.pkl", "/data.pkl", "m/../data.pkl", "m\\data.pkl", "m/..", ""}) {
    EXPECT_THAT(Fault(Zip({{name, PickleDict({})}})), HasSubstr("no plain relative name")) << name;
  }
  EXPECT_THAT(Fault(Zip({{std::string("m\0/data.pkl", 11), PickleDict({})}})), HasSubstr("no plain relative name"));
  EXPECT_THAT(Fault(Zip({{"m/data.pkl", PickleDict({}), 8, 0}})), HasSubstr("is compressed (method 8)"));
  EXPECT_THAT(Fault(Zip({{"m/data.pkl", PickleDict({}), 0, 1}})), HasSubstr("is encrypted"));
  EXPECT_THAT(Fault(Zip({{"m/data.pkl", PickleDict({})}, {"m/data.pkl", PickleDict({})}})), HasSubstr("occurs twice"));
  EXPECT_THAT(Fault(Zip({{"m/data.pkl", PickleDict({})}, {"n/data.pkl", PickleDict({})}})), HasSubstr("two data.pkl"));
  EXPECT_THAT(Fault(Zip({{"m/data.pkl", PickleDict({})}, {"n/x", ""}})), HasSubstr("lies outside"));
}

TEST(HostileTorchFile, OtherArchivesAndFormatsAreNamed) {
  EXPECT_THAT(Fault(Zip({})), HasSubstr("without data.pkl"));
  EXPECT_THAT(Fault(Zip({{"word/document.xml", "<"}})), HasSubstr("without data.pkl: not a PyTorch file"));
  EXPECT_THAT(Fault(Zip({{"m/data.pkl", PickleDict({})}, {"m/code/x.py", ""}})), HasSubstr("TorchScript"));
  EXPECT_THAT(Fault(Zip({{"m/data.pkl", PickleDict({})}, {"m/byteorder", "big"}})), HasSubstr("byte order is \"big\""));
  EXPECT_THAT(Fault("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03."),
              HasSubstr("PyTorch before 1.6"));
  EXPECT_THAT(Fault("\x80\x02}."), HasSubstr("a Python pickle"));
  EXPECT_THAT(Fault("version https://git-lfs.github.com/spec/v1"), HasSubstr("git-lfs pointer"));
  EXPECT_THAT(Fault("\x89HDF\r\n"), HasSubstr("HDF5"));
}

TEST(HostileTorchFile, AChangedPickleIsFoundByItsChecksum) {
  std::string bytes = TorchArchive(PickleDict({{"weight_a", Pickled({})}}), {Values()});
  bytes[bytes.find("weight_a") + 7] = 'b';
  EXPECT_THAT(Fault(bytes), HasSubstr("pickle does not have the checksum"));
}

}  // namespace
}  // namespace koine::model_loader
