// A copy of a stored model folder that a test adds to, breaks and removes from.
#ifndef KOINE_TESTS_SUPPORT_MODEL_COPY_H_
#define KOINE_TESTS_SUPPORT_MODEL_COPY_H_

#include <filesystem>
#include <string>

namespace koine::testing {

class ModelCopy {
 public:
  // Of a folder of the source tree; the copy goes with the object. Its place is the process's and the test's own.
  explicit ModelCopy(const std::string& relative = "tests/data/plans/plan-00");
  ~ModelCopy();
  ModelCopy(const ModelCopy&) = delete;
  ModelCopy& operator=(const ModelCopy&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path Language(const std::string& code) const { return path_ / "languages" / code; }

  // A language folder like `like` under another code: copied to a dot-name, renamed.
  void Add(const std::string& code, const std::string& like) const;
  void Remove(const std::string& code) const;
  // Cuts the end off the language's tensors: the header still stands, loading fails.
  void Break(const std::string& code) const;

 private:
  std::filesystem::path path_;
};

}  // namespace koine::testing

#endif  // KOINE_TESTS_SUPPORT_MODEL_COPY_H_
