// A machine for pickle opcodes (Python's Lib/pickletools.py) that can build dictionaries, lists, tuples, numbers,
// strings and tensors, and nothing else. Values live in one array and refer to each other by index; nothing is visited
// recursively, so that nesting costs no stack, and every value takes at least one byte of input.
#include <cstring>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model_loader/checkpoint/pickle_internal.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

constexpr size_t kMaxDimensions = 16;
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxKeyBytes = 64;  // storages are numbered
constexpr size_t kMaxTensors = 200'000;

enum class Callable : uint8_t { kOrderedDict, kRebuildTensor, kRebuildParameter, kSize, kStorage };

struct Global {
  const char* module;
  const char* name;
  Callable callable;
  ElementType type;  // of kStorage
};

// Everything that torch.save writes for dictionaries of tensors.
constexpr Global kGlobals[] = {
    {"collections", "OrderedDict", Callable::kOrderedDict, ElementType::kOther},
    {"torch._utils", "_rebuild_tensor_v2", Callable::kRebuildTensor, ElementType::kOther},
    {"torch._utils", "_rebuild_parameter", Callable::kRebuildParameter, ElementType::kOther},
    {"torch", "Size", Callable::kSize, ElementType::kOther},
    {"torch", "FloatStorage", Callable::kStorage, ElementType::kF32},
    {"torch", "HalfStorage", Callable::kStorage, ElementType::kF16},
    {"torch", "BFloat16Storage", Callable::kStorage, ElementType::kBF16},
    {"torch", "DoubleStorage", Callable::kStorage, ElementType::kF64},
    {"torch", "LongStorage", Callable::kStorage, ElementType::kI64},
    {"torch", "IntStorage", Callable::kStorage, ElementType::kI32},
    {"torch", "ShortStorage", Callable::kStorage, ElementType::kI16},
    {"torch", "CharStorage", Callable::kStorage, ElementType::kI8},
    {"torch", "ByteStorage", Callable::kStorage, ElementType::kU8},
    {"torch", "BoolStorage", Callable::kStorage, ElementType::kBool},
};

enum class Kind : uint8_t {
  kMark,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kTuple,
  kList,
  kDict,
  kGlobal,
  kStorage,
  kTensor
};

const char* Describe(Kind kind) {
  switch (kind) {
    case Kind::kMark:
      return "a mark";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInt:
      return "an integer";
    case Kind::kFloat:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kList:
      return "a list";
    case Kind::kDict:
      return "a dictionary";
    case Kind::kGlobal:
      return "a class or function";
    case Kind::kStorage:
      return "a storage";
    case Kind::kTensor:
      return "a tensor";
  }
  return "";
}

using Index = uint32_t;

struct Value {
  Kind kind = Kind::kNone;
  int64_t number = 0;        // kInt, kBool; kGlobal: place in kGlobals; kTensor: place in tensors_
  std::string_view text;     // kString
  std::vector<Index> items;  // kTuple, kList; kDict: key, value, key, value, ...
};

class Machine {
 public:
  Machine(absl::Span<const uint8_t> bytes, size_t most_values) : rest_(bytes), most_values_(most_values) {}

  absl::StatusOr<std::vector<PickledTensor>> Run() {
    while (!stopped_) {
      if (!Step()) return absl::InvalidArgumentError(fault_);
    }
    if (!rest_.empty()) return absl::InvalidArgumentError("the pickle has bytes after its end");
    if (stack_.size() != 1) return absl::InvalidArgumentError("the pickle ends with values left over");
    const Value& top = values_[stack_.back()];
    if (top.kind != Kind::kDict) {
      return absl::InvalidArgumentError(
          absl::StrCat("the pickle is ", Describe(top.kind), ", not a dictionary of tensors by names"));
    }
    std::vector<PickledTensor> result;
    std::set<std::string_view> names;
    for (size_t i = 0; i < top.items.size(); i += 2) {
      const Value& name = values_[top.items[i]];
      const Value& tensor = values_[top.items[i + 1]];
      if (name.kind != Kind::kString) {
        return absl::InvalidArgumentError(absl::StrCat("a tensor's name is ", Describe(name.kind), ", not a string"));
      }
      if (name.text.empty() || name.text.size() > kMaxNameBytes) {
        return absl::InvalidArgumentError(absl::StrCat("a tensor's name has ", name.text.size(), " bytes"));
      }
      if (tensor.kind != Kind::kTensor) {
        return absl::InvalidArgumentError(absl::StrCat(
            "\"", Printable(name.text), "\" is ", Describe(tensor.kind),
            ", not a tensor; give the folder that save_pretrained wrote, not a checkpoint of a training run"));
      }
      if (!names.insert(name.text).second) {
        return absl::InvalidArgumentError(absl::StrCat("\"", Printable(name.text), "\" occurs twice"));
      }
      result.push_back(tensors_[static_cast<size_t>(tensor.number)]);
      result.back().name = name.text;
    }
    return result;
  }

 private:
  template <typename... Parts>
  bool Fail(const Parts&... parts) {
    fault_ = absl::StrCat(parts...);
    return false;
  }
  bool Broken() { return Fail("the pickle is broken or cut off at its byte ", position_); }

  bool Take(uint64_t count, std::string_view* bytes) {
    if (count > rest_.size()) return Broken();
    *bytes = std::string_view(reinterpret_cast<const char*>(rest_.data()), count);
    rest_.remove_prefix(count);
    position_ += count;
    return true;
  }
  // Little-endian, without sign.
  bool Number(int size, uint64_t* value) {
    std::string_view bytes;
    if (!Take(static_cast<uint64_t>(size), &bytes)) return false;
    *value = 0;
    for (int i = size - 1; i >= 0; --i) *value = *value << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
    return true;
  }
  bool Line(std::string_view* line) {
    const void* found = rest_.empty() ? nullptr : std::memchr(rest_.data(), '\n', rest_.size());
    if (found == nullptr) return Broken();
    const auto length = static_cast<uint64_t>(static_cast<const uint8_t*>(found) - rest_.data());
    std::string_view ignored;
    return Take(length, line) && Take(1, &ignored);
  }

  bool Push(Value value) {
    if (values_.size() == most_values_) return Fail("the pickle has more than ", most_values_, " values");
    values_.push_back(std::move(value));
    stack_.push_back(static_cast<Index>(values_.size() - 1));
    return true;
  }
  bool PushInt(int64_t number) {
    Value value;
    value.kind = Kind::kInt;
    value.number = number;
    return Push(std::move(value));
  }
  bool PushEmpty(Kind kind, int64_t number = 0) {
    Value value;
    value.kind = kind;
    value.number = number;
    return Push(std::move(value));
  }
  bool PushString(uint64_t bytes) {
    Value value;
    value.kind = Kind::kString;
    return Take(bytes, &value.text) && Push(std::move(value));
  }
  bool Pop(Index* index) {
    if (stack_.empty() || values_[stack_.back()].kind == Kind::kMark) return Broken();
    *index = stack_.back();
    stack_.pop_back();
    return true;
  }
  // Everything above the last mark, and the mark itself.
  bool PopMark(std::vector<Index>* items) {
    size_t mark = stack_.size();
    while (mark > 0 && values_[stack_[mark - 1]].kind != Kind::kMark) --mark;
    if (mark == 0) return Broken();
    items->assign(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark - 1);
    return true;
  }
  bool PushTuple(std::vector<Index> items) {
    Value value;
    value.kind = Kind::kTuple;
    value.items = std::move(items);
    return Push(std::move(value));
  }
  bool TupleOf(size_t count) {
    std::vector<Index> items(count);
    for (size_t i = count; i-- > 0;) {
      if (!Pop(&items[i])) return false;
    }
    return PushTuple(std::move(items));
  }
  bool AddItems(Kind kind, const std::vector<Index>& items) {
    if (stack_.empty() || values_[stack_.back()].kind != kind) return Broken();
    if (kind == Kind::kDict && items.size() % 2 != 0) return Broken();
    std::vector<Index>& target = values_[stack_.back()].items;
    target.insert(target.end(), items.begin(), items.end());
    return true;
  }
  bool Remember(uint64_t key) {
    if (stack_.empty() || values_[stack_.back()].kind == Kind::kMark) return Broken();
    memo_[key] = stack_.back();
    return true;
  }
  bool Recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) return Broken();
    // Bounds what a byte of input can put on the stack and, from there, in tuples.
    if (stack_.size() >= most_values_ || ++recalls_ > most_values_) {
      return Fail("the pickle has more than ", most_values_, " values");
    }
    stack_.push_back(found->second);
    return true;
  }

  bool PushGlobal(std::string_view module, std::string_view name) {
    for (size_t i = 0; i < std::size(kGlobals); ++i) {
      if (module == kGlobals[i].module && name == kGlobals[i].name) {
        return PushEmpty(Kind::kGlobal, static_cast<int64_t>(i));
      }
    }
    return Fail("the pickle contains ", Printable(module), ".", Printable(name), ": not a tensor, refused");
  }

  // ('storage', torch.FloatStorage, '<key>', 'cpu', <elements>)
  bool PersistentId() {
    Index id = 0;
    if (!Pop(&id)) return false;
    const Value& tuple = values_[id];
    if (tuple.kind != Kind::kTuple || tuple.items.size() != 5) return Fail("a storage's description is no 5-tuple");
    const Value& word = values_[tuple.items[0]];
    const Value& type = values_[tuple.items[1]];
    const Value& key = values_[tuple.items[2]];
    const Value& place = values_[tuple.items[3]];
    const Value& elements = values_[tuple.items[4]];
    if (word.kind != Kind::kString || word.text != "storage" || type.kind != Kind::kGlobal ||
        kGlobals[type.number].callable != Callable::kStorage || key.kind != Kind::kString || key.text.empty() ||
        key.text.size() > kMaxKeyBytes || place.kind != Kind::kString || elements.kind != Kind::kInt ||
        elements.number < 0) {
      return Fail("a storage's description is none");
    }
    Value storage;
    storage.kind = Kind::kStorage;
    storage.number = elements.number;
    storage.text = key.text;
    storage.items = {static_cast<Index>(type.number)};
    return Push(std::move(storage));
  }

  bool Dimensions(Index index, std::vector<int64_t>* numbers) {
    const Value& tuple = values_[index];
    if (tuple.kind != Kind::kTuple || tuple.items.size() > kMaxDimensions) {
      return Fail("a tensor's shape is ", Describe(tuple.kind), " of ", tuple.items.size(), "; a tuple of at most ",
                  kMaxDimensions, " is expected");
    }
    for (const Index item : tuple.items) {
      if (values_[item].kind != Kind::kInt || values_[item].number < 0) {
        return Fail("a tensor's shape or strides hold something other than numbers of 0 or more");
      }
      numbers->push_back(values_[item].number);
    }
    return true;
  }

  bool Reduce() {
    Index arguments_index = 0, callable_index = 0;
    if (!Pop(&arguments_index) || !Pop(&callable_index)) return false;
    if (values_[callable_index].kind != Kind::kGlobal || values_[arguments_index].kind != Kind::kTuple) return Broken();
    const std::vector<Index> arguments = values_[arguments_index].items;
    const Global& global = kGlobals[values_[callable_index].number];
    switch (global.callable) {
      case Callable::kOrderedDict:
        if (!arguments.empty()) break;
        return PushEmpty(Kind::kDict);
      case Callable::kSize:
        if (arguments.size() != 1 || values_[arguments[0]].kind != Kind::kTuple) break;
        stack_.push_back(arguments[0]);
        return true;
      case Callable::kRebuildParameter:  // (data, requires_grad, backward_hooks)
        if (arguments.size() != 3 || values_[arguments[0]].kind != Kind::kTensor) break;
        stack_.push_back(arguments[0]);
        return true;
      case Callable::kRebuildTensor: {  // (storage, offset, size, stride, requires_grad, backward_hooks[, metadata])
        if (arguments.size() < 6 || arguments.size() > 7) break;
        const Value& storage = values_[arguments[0]];
        const Value& offset = values_[arguments[1]];
        if (storage.kind != Kind::kStorage || offset.kind != Kind::kInt || offset.number < 0) break;
        PickledTensor tensor;
        tensor.type = kGlobals[storage.items[0]].type;
        tensor.storage_key = storage.text;
        tensor.storage_elements = storage.number;
        tensor.offset = offset.number;
        if (!Dimensions(arguments[2], &tensor.shape) || !Dimensions(arguments[3], &tensor.strides)) return false;
        if (tensor.shape.size() != tensor.strides.size()) {
          return Fail("a tensor has ", tensor.shape.size(), " dimensions but ", tensor.strides.size(), " strides");
        }
        if (tensors_.size() == kMaxTensors) return Fail("the pickle has more than ", kMaxTensors, " tensors");
        tensors_.push_back(std::move(tensor));
        return PushEmpty(Kind::kTensor, static_cast<int64_t>(tensors_.size() - 1));
      }
      case Callable::kStorage:
        break;
    }
    return Fail("the pickle calls ", global.module, ".", global.name, " with arguments that make no tensor");
  }

  bool Step() {
    std::string_view opcode;
    if (!Take(1, &opcode)) return false;
    uint64_t number = 0;
    Index index = 0;
    switch (static_cast<uint8_t>(opcode[0])) {
      case 0x80:  // PROTO
        if (!Number(1, &number)) return false;
        return number >= 2 && number <= 5 ? true : Fail("a pickle of protocol ", number, "; 2 to 5 are read");
      case 0x95:  // FRAME: a hint for buffering
        return Number(8, &number);
      case '.':  // STOP
        stopped_ = true;
        return true;
      case '(':  // MARK
        return PushEmpty(Kind::kMark);
      case '}':  // EMPTY_DICT
        return PushEmpty(Kind::kDict);
      case ']':  // EMPTY_LIST
        return PushEmpty(Kind::kList);
      case ')':  // EMPTY_TUPLE
        return PushEmpty(Kind::kTuple);
      case 'N':  // NONE
        return PushEmpty(Kind::kNone);
      case 0x88:  // NEWTRUE
        return PushEmpty(Kind::kBool, 1);
      case 0x89:  // NEWFALSE
        return PushEmpty(Kind::kBool, 0);
      case 'K':  // BININT1
        return Number(1, &number) && PushInt(static_cast<int64_t>(number));
      case 'M':  // BININT2
        return Number(2, &number) && PushInt(static_cast<int64_t>(number));
      case 'J':  // BININT: with sign
        return Number(4, &number) && PushInt(static_cast<int32_t>(static_cast<uint32_t>(number)));
      case 0x8a: {  // LONG1: as few bytes as the number needs, with sign
        uint64_t length = 0;
        if (!Number(1, &length)) return false;
        if (length > 8) return Fail("the pickle has an integer of ", length, " bytes");
        if (length == 0) return PushInt(0);
        if (!Number(static_cast<int>(length), &number)) return false;
        const uint64_t unused = 64 - 8 * length;
        return PushInt(static_cast<int64_t>(number << unused) >> unused);
      }
      case 'G': {  // BINFLOAT
        std::string_view bytes;
        return Take(8, &bytes) && PushEmpty(Kind::kFloat);
      }
      case 'X':  // BINUNICODE
      case 'T':  // BINSTRING
        return Number(4, &number) && PushString(number);
      case 0x8c:  // SHORT_BINUNICODE
      case 'U':   // SHORT_BINSTRING
        return Number(1, &number) && PushString(number);
      case 'c': {  // GLOBAL
        std::string_view module, name;
        return Line(&module) && Line(&name) && PushGlobal(module, name);
      }
      case 0x93: {  // STACK_GLOBAL
        Index name = 0, module = 0;
        if (!Pop(&name) || !Pop(&module)) return false;
        if (values_[name].kind != Kind::kString || values_[module].kind != Kind::kString) return Broken();
        return PushGlobal(values_[module].text, values_[name].text);
      }
      case 'q':  // BINPUT
        return Number(1, &number) && Remember(number);
      case 'r':  // LONG_BINPUT
        return Number(4, &number) && Remember(number);
      case 0x94:  // MEMOIZE
        return Remember(memo_.size());
      case 'h':  // BINGET
        return Number(1, &number) && Recall(number);
      case 'j':  // LONG_BINGET
        return Number(4, &number) && Recall(number);
      case 0x85:  // TUPLE1
        return TupleOf(1);
      case 0x86:  // TUPLE2
        return TupleOf(2);
      case 0x87:  // TUPLE3
        return TupleOf(3);
      case 't': {  // TUPLE
        std::vector<Index> items;
        return PopMark(&items) && PushTuple(std::move(items));
      }
      case 'a':  // APPEND
        return Pop(&index) && AddItems(Kind::kList, {index});
      case 'e': {  // APPENDS
        std::vector<Index> items;
        return PopMark(&items) && AddItems(Kind::kList, items);
      }
      case 's': {  // SETITEM
        Index key = 0;
        return Pop(&index) && Pop(&key) && AddItems(Kind::kDict, {key, index});
      }
      case 'u': {  // SETITEMS
        std::vector<Index> items;
        return PopMark(&items) && AddItems(Kind::kDict, items);
      }
      case 'b':  // BUILD: an OrderedDict's attributes (_metadata), which describe modules and no tensors
        if (!Pop(&index)) return false;
        if (values_[index].kind != Kind::kDict || stack_.empty() || values_[stack_.back()].kind != Kind::kDict) {
          return Fail("the pickle sets the state of something that is no dictionary: not a tensor, refused");
        }
        return true;
      case 'Q':  // BINPERSID
        return PersistentId();
      case 'R':  // REDUCE
        return Reduce();
      default:
        position_ -= 1;
        return Fail("the pickle has the opcode ", static_cast<int>(static_cast<uint8_t>(opcode[0])), " at its byte ",
                    position_, ", which no dictionary of tensors needs: refused");
    }
  }

  absl::Span<const uint8_t> rest_;
  const size_t most_values_;
  uint64_t position_ = 0;
  size_t recalls_ = 0;
  bool stopped_ = false;
  std::string fault_;
  std::vector<Value> values_;
  std::vector<Index> stack_;
  std::unordered_map<uint64_t, Index> memo_;
  std::vector<PickledTensor> tensors_;
};

}  // namespace

absl::StatusOr<std::vector<PickledTensor>> ReadTensorPickle(absl::Span<const uint8_t> bytes, size_t most_values) {
  return Machine(bytes, most_values).Run();
}

}  // namespace koine::model_loader
