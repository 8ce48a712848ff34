// Options that take one of a few words.
#ifndef KOINE_MODEL_LOADER_TOOL_CHOICE_H_
#define KOINE_MODEL_LOADER_TOOL_CHOICE_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace koine::model_loader::tool {

// `set` gets the value of the word that is given, in any case; other words are refused with the list.
template <typename T>
CLI::Option* AddChoice(CLI::App* app, const std::string& name, const std::function<void(const T&)>& set,
                       const std::vector<std::pair<std::string, T>>& values, const std::string& description) {
  std::vector<std::string> words;
  for (const auto& [word, value] : values) words.push_back(word);
  return app
      ->add_option_function<std::string>(
          name,
          [set, values](const std::string& given) {
            for (const auto& [word, value] : values) {
              if (CLI::detail::to_lower(given) == word) set(value);
            }
          },
          description)
      ->check(CLI::IsMember(words, CLI::ignore_case));
}

}  // namespace koine::model_loader::tool

#endif  // KOINE_MODEL_LOADER_TOOL_CHOICE_H_
