// The arrows between folders, read from the real tree; and each rule shown to fire on a planted fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/unit/layering/rules.h"

namespace koine::layering {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The sources and CMake files of the repository.
const Tree& RealTree() {
  static const auto* tree = [] {
    auto* read = new Tree;
    const fs::path root = KOINE_SOURCE_DIR;
    for (const char* top : {"proto", "kernels", "model_loader", "server", "clients", "tests"}) {
      for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
        const std::string name = entry.path().filename().string();
        const std::string extension = entry.path().extension().string();
        if (!entry.is_regular_file() || (extension != ".cc" && extension != ".h" && name != "CMakeLists.txt")) continue;
        std::ostringstream text;
        text << std::ifstream(entry.path()).rdbuf();
        (*read)[fs::relative(entry.path(), root).generic_string()] = text.str();
      }
    }
    return read;
  }();
  return *tree;
}

TEST(Layering, TheTreeWasRead) {
  // Guards the tests below: rules over an empty tree would hold.
  EXPECT_TRUE(RealTree().count("kernels/tensor/dtype.h"));
  EXPECT_TRUE(RealTree().count("model_loader/model/model.h"));
  EXPECT_TRUE(RealTree().count("tests/unit/layering/layering_test.cc"));
  EXPECT_GT(RealTree().size(), 30u);
}

TEST(Layering, ArrowsPointOneWay) { EXPECT_THAT(CheckArrows(RealTree()), IsEmpty()); }
TEST(Layering, FoldersFormNoCircle) { EXPECT_THAT(CheckCircles(RealTree()), IsEmpty()); }
TEST(Layering, FoldersMeetAtPublicHeaders) { EXPECT_THAT(CheckSeams(RealTree()), IsEmpty()); }
TEST(Layering, ForeignHeadersStayAtHome) { EXPECT_THAT(CheckForeignHeaders(RealTree()), IsEmpty()); }
TEST(Layering, SentencePieceNeverMeetsAbseil) { EXPECT_THAT(CheckSentencePieceAlone(RealTree()), IsEmpty()); }

TEST(Layering, TheRootHasOnlyTheFixedFolders) {
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(KOINE_SOURCE_DIR)) {
    if (entry.is_directory()) folders.push_back(entry.path().filename().string());
  }
  ASSERT_FALSE(folders.empty());
  EXPECT_THAT(CheckRoot(folders), IsEmpty());
}

// The rules fire.

TEST(FindIncludes, SeesEveryFormAndSkipsComments) {
  const auto found = FindIncludes(
      "#include \"kernels/ops/ops.h\"\n"
      "  #  include <vector>  // why\n"
      "// #include \"server/a/a.h\"\n"
      "/* #include \"server/b/b.h\"\n"
      "#include \"server/c/c.h\" */\n"
      "const char* url = \"http://x\"; /* \" */\n"
      "#include \"proto.h\"\n");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].path, "kernels/ops/ops.h");
  EXPECT_TRUE(found[0].quoted);
  EXPECT_EQ(found[1].path, "vector");
  EXPECT_EQ(found[1].line, 2);
  EXPECT_FALSE(found[1].quoted);
  EXPECT_EQ(found[2].line, 7);
}

TEST(FolderOf, NamesTheSecondLevelFolder) {
  EXPECT_EQ(FolderOf("kernels/ops/ops.h"), "kernels/ops");
  EXPECT_EQ(FolderOf("koine/v1/koine.pb.h"), "proto");
  EXPECT_EQ(FolderOf("google/rpc/status.pb.h"), "proto");
  EXPECT_EQ(FolderOf("absl/status/status.h"), "");
  EXPECT_EQ(FolderOf("vector"), "");
}

TEST(CheckArrows, FiresOnArrowsThatPointBack) {
  EXPECT_THAT(CheckArrows({{"kernels/ops/ops.cc", "\n#include \"model_loader/model/model.h\"\n"}}),
              ElementsAre("kernels/ops/ops.cc:2: no arrow may go from kernels to model_loader/model"));
  EXPECT_THAT(CheckArrows({{"model_loader/a/a.h", "#include \"server/engine/engine.h\"\n"}}),
              ElementsAre(HasSubstr("from model_loader to server/engine")));
  EXPECT_THAT(CheckArrows({{"clients/cli/main.cc", "#include \"kernels/ops/ops.h\"\n"}}),
              ElementsAre(HasSubstr("from clients to kernels/ops")));
  EXPECT_THAT(CheckArrows({{"model_loader/a/a.cc", "#include \"koine/v1/koine.pb.h\"\n"}}),
              ElementsAre(HasSubstr("from model_loader to proto")));
  EXPECT_THAT(CheckArrows({{"server/rpc/rpc.cc", "#include <tests/unit/layering/rules.h>\n"}}),
              ElementsAre(HasSubstr("from server to tests/unit")));
  EXPECT_THAT(CheckArrows({{"kernels/ops/CMakeLists.txt", "koine_library(kernels/ops DEPS koine::server_rpc)\n"}}),
              ElementsAre("kernels/ops/CMakeLists.txt:1: no arrow may go from kernels to server"));
}

TEST(CheckArrows, IsSilentOnAllowedOnes) {
  EXPECT_THAT(
      CheckArrows({{"server/rpc/rpc.cc",
                    "#include \"koine/v1/koine.pb.h\"\n#include \"model_loader/model/model.h\"\n"
                    "#include \"kernels/ops/ops.h\"\n#include \"server/text/text.h\"\n"},
                   {"tests/unit/x/x_test.cc", "#include \"clients/cpp/client.h\"\n"},
                   {"clients/cpp/client.cc", "#include \"koine/v1/koine.grpc.pb.h\"\n"},
                   {"clients/cpp/CMakeLists.txt", "koine_library(clients/cpp DEPS koine::proto) # koine::server\n"}}),
      IsEmpty());
}

TEST(CheckCircles, FiresOnACircleOfFolders) {
  const Tree tree = {{"kernels/a/a.h", "#include \"kernels/b/b.h\"\n"},
                     {"kernels/b/b.h", "#include \"kernels/c/c.h\"\n"},
                     {"kernels/c/c.cc", "#include \"kernels/a/a.h\"\n"}};
  EXPECT_THAT(CheckCircles(tree),
              ElementsAre(HasSubstr("closes the circle kernels/a -> kernels/b -> kernels/c -> kernels/a")));
}

TEST(CheckSeams, FiresOnSourcesPrivateHeadersAndRelativeNames) {
  EXPECT_THAT(CheckSeams({{"server/a/a.cc", "#include \"kernels/ops/ops.cc\"\n"}}),
              ElementsAre(HasSubstr("includes a source file")));
  EXPECT_THAT(CheckSeams({{"server/engine/a.cc", "#include \"kernels/ops/exp-inl.h\"\n"}}),
              ElementsAre(HasSubstr("private to kernels/ops")));
  EXPECT_THAT(CheckSeams({{"kernels/attention/a.cc", "#include \"kernels/ops/ops_internal.h\"\n"}}),
              ElementsAre(HasSubstr("private to kernels/ops")));
  EXPECT_THAT(CheckSeams({{"kernels/ops/a.cc", "#include \"ops.h\"\n#include \"../b/b.h\"\n"}}),
              ElementsAre(HasSubstr("from the root"), HasSubstr("from the root")));
  EXPECT_THAT(CheckSeams({{"kernels/ops/a.cc", "#include <kernels/ops/ops.h>\n"}}),
              ElementsAre(HasSubstr("in quotes")));
  EXPECT_THAT(CheckSeams({{"kernels/attention/a.cc", "#include \"kernels/ops/exp-inl.h\"\n#include <omp.h>\n"}}),
              IsEmpty());
}

TEST(CheckForeignHeaders, FiresOutsideTheirHomes) {
  EXPECT_THAT(CheckForeignHeaders({{"kernels/ops/ops.cc", "#include <dnnl.hpp>\n"}}),
              ElementsAre(HasSubstr("dnnl.hpp")));
  EXPECT_THAT(CheckForeignHeaders({{"model_loader/model/model.cc", "#include <grpcpp/grpcpp.h>\n"}}),
              ElementsAre(HasSubstr("grpcpp/grpcpp.h")));
  EXPECT_THAT(CheckForeignHeaders({{"model_loader/tokenizer/a.cc", "#include <sentencepiece_processor.h>\n"},
                                   {"model_loader/tokenizer/b.cc", "#include <sentencepiece_processor.h>\n"}}),
              ElementsAre(HasSubstr("belongs in one file")));
  EXPECT_THAT(CheckForeignHeaders({{"model_loader/tokenizer/a.h", "#include <sentencepiece_processor.h>\n"}}),
              ElementsAre(HasSubstr("by a header")));
  EXPECT_THAT(CheckForeignHeaders({{"kernels/matmul/matmul.cc", "#include <dnnl.hpp>\n"},
                                   {"tests/unit/x/x_test.cc", "#include <dnnl.hpp>\n"},
                                   {"model_loader/tokenizer/a.cc", "#include <sentencepiece_processor.h>\n"}}),
              IsEmpty());
}

TEST(CheckSentencePieceAlone, FiresOnAbseilHoweverIndirect) {
  EXPECT_THAT(CheckSentencePieceAlone(
                  {{"model_loader/t/a.cc", "#include <sentencepiece_processor.h>\n#include \"model_loader/t/b.h\"\n"},
                   {"model_loader/t/b.h", "#include \"model_loader/t/c.h\"\n"},
                   {"model_loader/t/c.h", "#include \"absl/status/status.h\"\n"}}),
              ElementsAre(HasSubstr("absl/status/status.h through model_loader/t/c.h")));
}

TEST(CheckRoot, FiresOnANewFolder) {
  EXPECT_THAT(CheckRoot({"kernels", "build", ".git", "deploy", "tests", "utils"}), ElementsAre(HasSubstr("utils/")));
}

}  // namespace
}  // namespace koine::layering
