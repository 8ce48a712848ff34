// koine-model import as a process: exit codes, signals, a full disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace koine {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ImportProcess : public ::testing::Test {
 protected:
  ImportProcess() {
    static int made = 0;
    folder_ = fs::path(::testing::TempDir()) / absl::StrCat("koine_import_process_", getpid(), "_", ++made);
    fs::create_directories(folder_);
  }
  ~ImportProcess() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  // Starts the tool; `before` runs in the child.
  pid_t Start(std::vector<std::string> arguments, const std::function<void()>& before = nullptr) {
    arguments.insert(arguments.begin(), absl::StrCat(KOINE_BUILD_DIR, "/bin/koine-model"));
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string log = Log();
    const pid_t pid = fork();
    if (pid == 0) {
      if (freopen(log.c_str(), "w", stderr) == nullptr || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) _exit(126);
      if (before) before();
      execv(argv[0], argv.data());
      _exit(127);
    }
    return pid;
  }
  // The exit code, or 128 + the signal that ended it.
  static int Wait(pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  static std::string Data(const std::string& name) { return absl::StrCat(KOINE_SOURCE_DIR, "/tests/data/", name); }
  std::string Log() const { return (folder_ / "log").string(); }
  fs::path Out() const { return folder_ / "models" / "model"; }
  std::string Output() const {
    std::ifstream stream(Log());
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
  }
  std::set<std::string> Left() const {
    std::set<std::string> names;
    if (fs::exists(folder_ / "models")) {
      for (const auto& entry : fs::directory_iterator(folder_ / "models"))
        names.insert(entry.path().filename().string());
    }
    return names;
  }
  // Until the import has begun to write.
  bool WaitForHalf() const {
    for (int i = 0; i < 30'000; ++i) {
      if (fs::exists(folder_ / "models" / ".model.part" / "model.json")) return true;
      if (fs::exists(Out())) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  fs::path folder_;
};

TEST_F(ImportProcess, ImportsAndReports) {
  ASSERT_EQ(Wait(Start({"import", Data("hf-xlmr"), "--out", Out().string(), "--name", "mine"})), 0) << Output();
  EXPECT_THAT(Output(), HasSubstr("mine: XLM-R encoder"));
  EXPECT_EQ(Left(), (std::set<std::string>{"model"}));
  ASSERT_EQ(Wait(Start({"import", Data("hf-xlmr"), "--out", Out().string()})), 1);
  EXPECT_THAT(Output(), HasSubstr("exists already"));
}

TEST_F(ImportProcess, MakesSamplesAndChecksumsThatVerifyHoldsAgainstTheModel) {
  const std::string texts = (folder_ / "texts").string();
  std::ofstream(texts) << "You need to choose a language.\r\n\nThe sheets could not be deleted.\n";
  const std::vector<std::string> import = {"import", Data("hf-nllb"), "--out", Out().string(), "--languages", "en,de"};
  const auto with = [&import](const std::string& sample_texts) {
    std::vector<std::string> all = import;
    all.insert(all.end(), {"--sample-texts", sample_texts});
    return all;
  };
  EXPECT_EQ(Wait(Start(with("en-fr=" + texts))), 1);
  EXPECT_THAT(Output(), HasSubstr("\"en-fr\" is not a language"));
  EXPECT_EQ(Wait(Start(with("en-de=" + texts + ".none"))), 1);
  const std::string empty = (folder_ / "empty").string();
  std::ofstream(empty) << "";
  EXPECT_EQ(Wait(Start(with("en-de=" + empty))), 1);
  EXPECT_THAT(Output(), HasSubstr("has no text"));
  EXPECT_TRUE(Left().empty()) << "no model without the samples that were asked for";
  ASSERT_EQ(Wait(Start(with("en-de=" + texts))), 0) << Output();
  ASSERT_EQ(Wait(Start({"verify", Out().string()})), 0) << Output();
  EXPECT_THAT(Output(), HasSubstr("7 files of SHA256SUMS, 0 failed"));
  EXPECT_THAT(Output(), HasSubstr("2 samples, 0 failed"));

  ASSERT_EQ(Wait(Start({"add-adapter", Out().string(), "de", Data("hf-nllb-lora-de")})), 0) << Output();
  ASSERT_EQ(Wait(Start({"verify", Out().string()})), 0) << Output();
  EXPECT_THAT(Output(), HasSubstr("9 files of SHA256SUMS, 0 failed"));

  // A weight's lowest bit: too little for any sample to see.
  std::fstream weights(Out() / "shared.safetensors", std::ios::binary | std::ios::in | std::ios::out);
  weights.seekg(-4, std::ios::end);
  const int byte = weights.get();
  weights.seekp(-4, std::ios::end);
  weights.put(static_cast<char>(byte ^ 1));
  weights.close();
  EXPECT_EQ(Wait(Start({"verify", Out().string()})), 1) << Output();
  EXPECT_THAT(Output(), HasSubstr("FAILED shared.safetensors: differs"));
  EXPECT_THAT(Output(), HasSubstr("2 samples, 0 failed"));
}

TEST_F(ImportProcess, TellsWrongUsageFromWrongFiles) {
  EXPECT_EQ(Wait(Start({"import", Data("hf-xlmr")})), 2);
  EXPECT_EQ(Wait(Start({"import", Data("hf-xlmr"), "--out", Out().string(), "--tables", "none"})), 2);
  EXPECT_EQ(Wait(Start({"import", Data("hf-xlmr"), "--out", Out().string(), "--dtype", "i8"})), 2);
  EXPECT_EQ(Wait(Start({"import", Data("hf-xlmr"), "--out", Out().string(), "--sample", "en"})), 2);
  EXPECT_EQ(Wait(Start({"import", Data("nothing"), "--out", Out().string()})), 1);
  const std::string output = Output();
  EXPECT_THAT(output, HasSubstr("no such folder"));
  EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
  EXPECT_TRUE(Left().empty());
}

TEST_F(ImportProcess, LeavesNothingBehindOnASignal) {
  for (const int number : {SIGTERM, SIGINT}) {
    const pid_t pid = Start({"import", Data("hf-nllb"), "--out", Out().string()});
    ASSERT_TRUE(WaitForHalf());
    ASSERT_EQ(kill(pid, number), 0);
    EXPECT_EQ(Wait(pid), 1);
    EXPECT_THAT(Output(), HasSubstr("interrupted; nothing was written"));
    EXPECT_TRUE(Left().empty());
  }
}

TEST_F(ImportProcess, EndsBetweenSamplesToo) {
  const std::string texts = (folder_ / "texts").string();
  {
    std::ofstream stream(texts);
    for (int i = 0; i < 100'000; ++i) stream << "You need to choose a language.\n";
  }
  const pid_t pid = Start(
      {"import", Data("hf-nllb"), "--out", Out().string(), "--languages", "en,de", "--sample-texts", "en-de=" + texts});
  for (int i = 0; i < 30'000 && !fs::exists(folder_ / "models" / ".model.part" / "languages" / "deu_Latn"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // On to the samples, which take minutes: whatever comes before would end at once by itself.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ASSERT_EQ(kill(pid, SIGTERM), 0);
  const auto asked = std::chrono::steady_clock::now();
  EXPECT_EQ(Wait(pid), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds(30)) << "it went on to the last sample";
  EXPECT_THAT(Output(), HasSubstr("interrupted; nothing was written"));
  EXPECT_TRUE(Left().empty());
}

TEST_F(ImportProcess, AKilledImportIsInNobodysWay) {
  const pid_t pid = Start({"import", Data("hf-nllb"), "--out", Out().string()});
  ASSERT_TRUE(WaitForHalf());
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(Wait(pid), 128 + SIGKILL);
  EXPECT_EQ(Left(), (std::set<std::string>{".model.part"}));
  ASSERT_EQ(Wait(Start({"import", Data("hf-nllb"), "--out", Out().string(), "--languages", "en,de"})), 0) << Output();
  EXPECT_EQ(Left(), (std::set<std::string>{"model"}));
}

TEST_F(ImportProcess, AnInterruptedQuantizeLeavesNothingBehind) {
  ASSERT_EQ(Wait(Start({"import", Data("hf-nllb"), "--out", (folder_ / "models" / "source").string()})), 0) << Output();
  const pid_t pid =
      Start({"quantize", (folder_ / "models" / "source").string(), "--out", Out().string(), "--dtype", "int8"});
  ASSERT_TRUE(WaitForHalf());
  ASSERT_EQ(kill(pid, SIGTERM), 0);
  EXPECT_EQ(Wait(pid), 1);
  EXPECT_THAT(Output(), HasSubstr("interrupted; nothing was written"));
  EXPECT_EQ(Left(), (std::set<std::string>{"source"}));
}

// A file system that takes no more is what a limit on file sizes looks like to a writer.
TEST_F(ImportProcess, LeavesNothingBehindWhenTheDiskIsFull) {
  for (const rlim_t limit : {rlim_t{1'000}, rlim_t{300'000}, rlim_t{600'000}}) {
    const pid_t pid = Start({"import", Data("hf-t5"), "--out", Out().string()}, [limit] {
      const rlimit sizes = {limit, limit};
      setrlimit(RLIMIT_FSIZE, &sizes);
    });
    EXPECT_EQ(Wait(pid), 1);
    const std::string output = Output();
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
    EXPECT_TRUE(Left().empty());
  }
}

}  // namespace
}  // namespace koine
