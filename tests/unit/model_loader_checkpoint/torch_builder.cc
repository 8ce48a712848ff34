#include "tests/unit/model_loader_checkpoint/torch_builder.h"

#include <zlib.h>

#include <cstring>

namespace koine::model_loader {

std::string Bytes(uint64_t value, int size) {
  std::string text;
  for (int i = 0; i < size; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::string PickleString(std::string_view text) { return std::string("X") + Bytes(text.size(), 4) + std::string(text); }
std::string PickleInt(int64_t value) { return std::string("\x8a\x08") + Bytes(static_cast<uint64_t>(value), 8); }

std::string PickleTuple(const std::vector<std::string>& items) {
  std::string text = "(";
  for (const std::string& item : items) text += item;
  return text + "t";
}

std::string PickleGlobal(std::string_view module, std::string_view name) {
  return std::string("c") + std::string(module) + "\n" + std::string(name) + "\n";
}

std::string Pickled(const PickleTensor& tensor) {
  const auto numbers = [](const std::vector<int64_t>& values) {
    std::vector<std::string> items;
    for (const int64_t value : values) items.push_back(PickleInt(value));
    return PickleTuple(items);
  };
  const std::string storage =
      PickleTuple({PickleString("storage"), PickleGlobal("torch", tensor.storage), PickleString(tensor.key),
                   PickleString("cpu"), PickleInt(tensor.storage_elements)}) +
      "Q";
  return PickleGlobal("torch._utils", "_rebuild_tensor_v2") +
         PickleTuple({storage, PickleInt(tensor.offset), numbers(tensor.shape), numbers(tensor.strides), "\x89",
                      PickleGlobal("collections", "OrderedDict") + ")R"}) +
         "R";
}

std::string PickleDict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text = "\x80\x02}(";
  for (const auto& [name, value] : entries) text += PickleString(name) + value;
  return text + "u.";
}

std::string Zip(const std::vector<Member>& members, const ZipOptions& options) {
  std::string text, directory;
  for (const Member& member : members) {
    const uint64_t local = text.size(), size = member.data.size();
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(member.data.data()), static_cast<uInt>(size));
    const uint64_t shown = options.zip64 ? 0xffffffff : size;
    const std::string extra =
        options.zip64 ? Bytes(1, 2) + Bytes(24, 2) + Bytes(size, 8) + Bytes(size, 8) + Bytes(local, 8) : std::string();
    const std::string common = Bytes(member.flags, 2) + Bytes(member.method, 2) + Bytes(0, 4) + Bytes(crc, 4) +
                               Bytes(shown, 4) + Bytes(shown, 4) + Bytes(member.name.size(), 2);
    text += Bytes(0x04034b50, 4) + Bytes(45, 2) + common + Bytes(4, 2) + member.name;
    text += Bytes(0x4246, 2) + Bytes(0, 2);  // torch pads with a field "FB"
    text += member.data;
    directory += Bytes(0x02014b50, 4) + Bytes(45, 2) + Bytes(45, 2) + common + Bytes(extra.size(), 2) + Bytes(0, 2) +
                 Bytes(0, 2) + Bytes(0, 2) + Bytes(0, 4) + Bytes(options.zip64 ? 0xffffffff : local, 4) + member.name +
                 extra;
  }
  const uint64_t place = options.directory >= 0 ? static_cast<uint64_t>(options.directory) : text.size();
  const uint64_t count = options.count >= 0 ? static_cast<uint64_t>(options.count) : members.size();
  const uint64_t end64 = text.size() + directory.size();
  text += directory;
  if (options.zip64) {
    text += Bytes(0x06064b50, 4) + Bytes(44, 8) + Bytes(45, 2) + Bytes(45, 2) + Bytes(0, 8) + Bytes(count, 8) +
            Bytes(count, 8) + Bytes(directory.size(), 8) + Bytes(place, 8);
    text += Bytes(0x07064b50, 4) + Bytes(0, 4) + Bytes(end64, 8) + Bytes(1, 4);
    text += Bytes(0x06054b50, 4) + Bytes(0, 4) + Bytes(0xffff, 2) + Bytes(0xffff, 2) + Bytes(0xffffffff, 4) +
            Bytes(0xffffffff, 4) + Bytes(0, 2);
  } else {
    text += Bytes(0x06054b50, 4) + Bytes(0, 4) + Bytes(count, 2) + Bytes(count, 2) + Bytes(directory.size(), 4) +
            Bytes(place, 4) + Bytes(0, 2);
  }
  return text;
}

std::string TorchArchive(const std::string& pickle, const std::vector<std::string>& storages,
                         const ZipOptions& options) {
  std::vector<Member> members = {{"m/data.pkl", pickle}, {"m/byteorder", "little"}};
  for (size_t i = 0; i < storages.size(); ++i) members.push_back({"m/data/" + std::to_string(i), storages[i]});
  members.push_back({"m/version", "3\n"});
  return Zip(members, options);
}

std::string Floats(const std::vector<float>& values) {
  std::string text(values.size() * sizeof(float), '\0');
  std::memcpy(text.data(), values.data(), text.size());
  return text;
}

}  // namespace koine::model_loader
