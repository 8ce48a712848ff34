#include "server/languages/language_store.h"

#include <malloc.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace koine::server {

using model_loader::Language;
using model_loader::LanguagePlan;

namespace {

// How long the oldest request may wait for room while others keep leasing what is loaded. Some hundred times a usual
// request, so that it only matters where more languages are in use at once than the budget holds.
constexpr absl::Duration kPatience = absl::Milliseconds(500);

// Of the payload that names an error's language.
constexpr char kLanguagePayload[] = "koine.language";

absl::Status About(const std::string& code, absl::Status status) {
  status.SetPayload(kLanguagePayload, absl::Cord(code));
  return status;
}

absl::Status Removed(const std::string& code) {
  return About(code, absl::NotFoundError(absl::StrCat("language ", code, " has been removed")));
}

}  // namespace

std::string TakeFailedLanguage(absl::Status* status) {
  const auto code = status->GetPayload(kLanguagePayload);
  if (!code.has_value()) return "";
  status->ErasePayload(kLanguagePayload);
  return std::string(*code);
}

const char* Name(LanguageState state) {
  switch (state) {
    case LanguageState::kCold:
      return "cold";
    case LanguageState::kLoading:
      return "loading";
    case LanguageState::kLoaded:
      return "loaded";
    case LanguageState::kDraining:
      return "draining";
    case LanguageState::kFailed:
      return "failed";
  }
  return "?";
}

// One version of one language folder. A changed folder gets a new entry; the old one lives on for its leases.
struct LanguageStore::Entry {
  std::string code;
  LanguagePlan plan;
  LanguageState state = LanguageState::kCold;
  absl::Status failure;
  std::shared_ptr<const Language> loaded;
  int64_t counted_bytes = 0;  // of used_bytes_
  int64_t leases = 0;
  int64_t loads = 0;
  absl::Duration last_load;
  uint64_t last_use = 0;
  bool pinned = false;
  bool wanted = false;   // load without a request
  bool retired = false;  // removed or replaced: not in entries_ any more
};

LanguageStore::LanguageStore(std::shared_ptr<const model_loader::Model> model, LanguageStoreOptions options)
    : model_(std::move(model)), options_(std::move(options)) {}

LanguageStore::~LanguageStore() { Stop(); }

absl::Status LanguageStore::Start() {
  const RescanResult found = Rescan();
  {
    const absl::MutexLock lock(&mutex_);
    if (entries_.empty()) {
      return absl::NotFoundError(absl::StrCat(model_->directory(), "/languages: no language folder"));
    }
    for (const std::string& name : options_.pinned) {
      const auto code = names_.Find(name);
      if (!code.ok()) return absl::Status(code.status().code(), absl::StrCat("pinned: ", code.status().message()));
      const EntryPtr entry = FindEntry(*code);
      entry->pinned = entry->wanted = true;
    }
  }
  // Before the first request nobody is disturbed: load here, at full priority.
  std::vector<EntryPtr> first;
  {
    const absl::MutexLock lock(&mutex_);
    for (const auto& [code, entry] : entries_) {
      if (!entry->wanted || entry->state != LanguageState::kCold) continue;
      bool never = false;
      if (!MakeRoom(entry->plan.memory_bytes(), {}, &never)) {
        return absl::ResourceExhaustedError(absl::StrCat("pinned languages need more than the language memory of ",
                                                         options_.memory_budget, " bytes; ", code, " does not fit"));
      }
      Count(entry.get());
      first.push_back(entry);
    }
  }
  for (const EntryPtr& entry : first) LoadEntry(entry);
  if (absl::Status usable = CheckAnyUsable(found); !usable.ok()) return usable;
  thread_ = std::thread([this] { LoadingThread(); });
  return absl::OkStatus();
}

// What is left must be worth a start: a language that was promised, or any where none was.
absl::Status LanguageStore::CheckAnyUsable(const RescanResult& found) const {
  const absl::MutexLock lock(&mutex_);
  const auto& listed = model_->config().languages;
  for (const auto& [code, entry] : entries_) {
    if (entry->state == LanguageState::kFailed) continue;
    if (listed.empty() || std::find(listed.begin(), listed.end(), code) != listed.end()) return absl::OkStatus();
  }
  if (!found.broken.empty()) return found.broken.front().second;
  for (const auto& [code, entry] : entries_) {
    if (entry->state == LanguageState::kFailed) return FailureOf(*entry);
  }
  return absl::NotFoundError(absl::StrCat(model_->directory(), "/languages: no language that model.json lists"));
}

void LanguageStore::Stop() {
  Calls calls;
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (Waiter& waiter : waiters_) {
      calls.push_back(
          [ready = std::move(waiter.ready)] { ready(absl::UnavailableError("the server is shutting down")); });
    }
    waiters_.clear();
  }
  for (const auto& call : calls) call();
  if (thread_.joinable()) thread_.join();
}

bool LanguageStore::has_languages() const {
  const absl::MutexLock lock(&mutex_);
  return entries_.count("") == 0;
}

absl::StatusOr<std::string> LanguageStore::Find(std::string_view name) const {
  const absl::MutexLock lock(&mutex_);
  return names_.Find(name);
}

LanguageStore::EntryPtr LanguageStore::FindEntry(std::string_view code) const {
  const auto found = entries_.find(code);
  return found == entries_.end() ? nullptr : found->second;
}

absl::Status LanguageStore::FailureOf(const Entry& entry) {
  return About(entry.code, absl::FailedPreconditionError(
                               absl::StrCat("language ", entry.code, " cannot be loaded: ", entry.failure.message())));
}

uint64_t LanguageStore::Acquire(std::vector<std::string> codes, absl::Time deadline, Ready ready) {
  absl::StatusOr<std::vector<LanguageLease>> answer = std::vector<LanguageLease>();
  {
    const absl::MutexLock lock(&mutex_);
    Waiter waiter;
    for (const std::string& code : codes) {
      EntryPtr entry = FindEntry(code);
      if (entry == nullptr) {
        answer = Removed(code);
        break;
      }
      if (entry->state == LanguageState::kFailed) {
        answer = FailureOf(*entry);
        break;
      }
      waiter.entries.push_back(std::move(entry));
    }
    if (answer.ok() && stopping_) answer = absl::UnavailableError("the server is shutting down");
    if (answer.ok()) {
      if (starving_ || !Grantable(waiter)) {
        waiter.ticket = next_ticket_++;
        waiter.since = absl::Now();
        waiter.deadline = deadline;
        waiter.ready = std::move(ready);
        waiters_.push_back(std::move(waiter));
        changed_ = true;
        return waiters_.back().ticket;
      }
      answer = Grant(waiter.entries);
    }
  }
  ready(std::move(answer));
  return 0;
}

void LanguageStore::Cancel(uint64_t ticket, const absl::Status& status) {
  Ready ready;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found =
        std::find_if(waiters_.begin(), waiters_.end(), [ticket](const Waiter& w) { return w.ticket == ticket; });
    if (found == waiters_.end()) return;
    ready = std::move(found->ready);
    waiters_.erase(found);
    changed_ = true;
  }
  ready(status);
}

bool LanguageStore::Grantable(const Waiter& waiter) const {
  return std::all_of(waiter.entries.begin(), waiter.entries.end(),
                     [](const EntryPtr& entry) { return entry->state == LanguageState::kLoaded && !entry->retired; });
}

std::vector<LanguageLease> LanguageStore::Grant(absl::Span<const EntryPtr> entries) {
  std::vector<LanguageLease> leases;
  for (const EntryPtr& entry : entries) {
    ++entry->leases;
    entry->last_use = ++clock_;
    leases.emplace_back(entry->loaded.get(), [this, entry](const Language*) { Release(entry); });
  }
  return leases;
}

void LanguageStore::Release(const EntryPtr& entry) {
  const absl::MutexLock lock(&mutex_);
  --entry->leases;
  if (entry->leases > 0) return;
  if (entry->retired || entry->state == LanguageState::kDraining) Drop(entry.get());
  if (!waiters_.empty()) changed_ = true;  // room may have come free
}

// Forgets a loaded language; its memory goes with Bury.
void LanguageStore::Drop(Entry* entry) {
  dropped_.push_back(std::move(entry->loaded));
  entry->loaded = nullptr;
  entry->state = LanguageState::kCold;
  used_bytes_ -= entry->counted_bytes;
  entry->counted_bytes = 0;
  ++counters_.evictions;
  changed_ = true;
}

void LanguageStore::Bury() {
  std::vector<std::shared_ptr<const Language>> dropped;
  {
    const absl::MutexLock lock(&mutex_);
    dropped.swap(dropped_);
  }
  if (dropped.empty()) return;
  dropped.clear();
  // Tokenizers lived in the heap: give their pages back too.
  malloc_trim(0);
}

void LanguageStore::Count(Entry* entry) {
  entry->state = LanguageState::kLoading;
  entry->counted_bytes = entry->plan.memory_bytes();
  used_bytes_ += entry->counted_bytes;
}

bool LanguageStore::MakeRoom(int64_t bytes, absl::Span<const EntryPtr> keep, bool* never) {
  *never = false;
  if (options_.memory_budget == 0) return true;
  const auto kept = [&](const Entry& entry) {
    return entry.pinned || std::any_of(keep.begin(), keep.end(), [&](const EntryPtr& k) { return k.get() == &entry; });
  };
  int64_t fixed = bytes;
  for (const auto& [code, entry] : entries_) {
    if (kept(*entry)) fixed += entry->counted_bytes;
  }
  if (fixed > options_.memory_budget) {
    *never = true;
    return false;
  }
  while (used_bytes_ + bytes > options_.memory_budget) {
    Entry* oldest = nullptr;
    for (const auto& [code, entry] : entries_) {
      if (entry->state != LanguageState::kLoaded || entry->leases > 0 || kept(*entry)) continue;
      if (oldest == nullptr || entry->last_use < oldest->last_use) oldest = entry.get();
    }
    if (oldest == nullptr) return false;
    Drop(oldest);
  }
  return true;
}

void LanguageStore::Settle(Calls* calls) {
  const absl::Time now = absl::Now();
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    absl::StatusOr<std::vector<LanguageLease>> answer = absl::UnknownError("waits");
    bool settled = true;
    // A folder may have been replaced while the request waited: take the new version.
    for (EntryPtr& entry : it->entries) {
      if (!entry->retired) continue;
      const EntryPtr current = FindEntry(entry->code);
      if (current != nullptr) entry = current;
    }
    const auto removed = std::find_if(it->entries.begin(), it->entries.end(), [](const auto& e) { return e->retired; });
    const auto failed = std::find_if(it->entries.begin(), it->entries.end(),
                                     [](const auto& e) { return e->state == LanguageState::kFailed; });
    if (removed != it->entries.end()) {
      answer = Removed((*removed)->code);
    } else if (failed != it->entries.end()) {
      answer = FailureOf(**failed);
    } else if (Grantable(*it) && (!starving_ || it == waiters_.begin())) {
      answer = Grant(it->entries);
    } else if (it->deadline <= now) {
      answer = absl::DeadlineExceededError("the deadline passed while waiting for a language to load");
    } else {
      settled = false;
    }
    if (!settled) {
      ++it;
      continue;
    }
    if (it == waiters_.begin()) starving_ = false;
    calls->push_back(
        [ready = std::move(it->ready), answer = std::move(answer)]() mutable { ready(std::move(answer)); });
    it = waiters_.erase(it);
  }
}

void LanguageStore::LoadEntry(const EntryPtr& entry) {
  const absl::Time start = absl::Now();
  absl::StatusOr<std::shared_ptr<const Language>> language = absl::InternalError("not loaded");
  try {
    language = model_->LoadLanguage(entry->code);
    const absl::Status fits = language.ok() && options_.check ? options_.check(**language) : absl::OkStatus();
    if (!fits.ok()) language = fits;
  } catch (const std::exception& error) {
    language = absl::InternalError(absl::StrCat("loading failed: ", error.what()));
  }
  const absl::MutexLock lock(&mutex_);
  entry->wanted = false;
  entry->last_load = absl::Now() - start;
  changed_ = true;
  if (!language.ok()) {
    entry->state = LanguageState::kFailed;
    entry->failure = language.status();
    used_bytes_ -= entry->counted_bytes;
    entry->counted_bytes = 0;
    ++counters_.failures;
    return;
  }
  entry->loaded = *std::move(language);
  entry->state = LanguageState::kLoaded;
  entry->last_use = ++clock_;
  ++entry->loads;
  ++counters_.loads;
  if (entry->retired) Drop(entry.get());
}

LanguageStore::EntryPtr LanguageStore::NextToLoad(Calls* calls) {
  starving_ = false;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    const auto cold = std::find_if(it->entries.begin(), it->entries.end(),
                                   [](const EntryPtr& e) { return e->state == LanguageState::kCold; });
    if (cold == it->entries.end()) {
      ++it;  // waits for something that is draining
      continue;
    }
    bool never = false;
    if (MakeRoom((*cold)->plan.memory_bytes(), it->entries, &never)) return *cold;
    if (!never) {
      // It waits for a lease to end; younger ones must not take the room it needs.
      starving_ = it == waiters_.begin() && absl::Now() - it->since > kPatience;
      return nullptr;
    }
    calls->push_back([ready = std::move(it->ready), code = (*cold)->code, budget = options_.memory_budget] {
      ready(About(code, absl::ResourceExhaustedError(absl::StrCat("language ", code,
                                                                  " does not fit into the language memory of ", budget,
                                                                  " bytes beside what is pinned or needed with it"))));
    });
    it = waiters_.erase(it);
  }
  for (const auto& [code, entry] : entries_) {
    bool never = false;
    if (!entry->wanted || entry->state != LanguageState::kCold) continue;
    if (MakeRoom(entry->plan.memory_bytes(), {}, &never)) return entry;
    if (never) entry->wanted = false;
  }
  return nullptr;
}

void LanguageStore::LoadingThread() {
  // Relative to the server's own, which an operator may have raised.
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + options_.loading_niceness);
  const auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return changed_ || stopping_; };
  while (true) {
    Calls calls;
    EntryPtr next;
    {
      const absl::MutexLock lock(&mutex_);
      const absl::Time now = absl::Now();
      absl::Time wake = absl::InfiniteFuture();
      for (const Waiter& waiter : waiters_) {
        wake = std::min(wake, waiter.deadline);
        if (waiter.since + kPatience > now) wake = std::min(wake, waiter.since + kPatience);
      }
      mutex_.AwaitWithDeadline(absl::Condition(&woken), wake);
      if (stopping_) return;
      changed_ = false;
      Settle(&calls);
      next = NextToLoad(&calls);
      if (next != nullptr) Count(next.get());
    }
    for (const auto& call : calls) call();
    calls.clear();
    Bury();
    if (next != nullptr) LoadEntry(next);
  }
}

RescanResult LanguageStore::Rescan() {
  RescanResult result = RescanFolders();
  Bury();
  return result;
}

RescanResult LanguageStore::RescanFolders() {
  const absl::MutexLock one(&rescan_mutex_);
  RescanResult result;
  // Folders are read without the store's lock: requests go on.
  std::vector<std::pair<std::string, absl::StatusOr<LanguagePlan>>> plans;
  for (const std::string& code : model_->LanguageCodes()) plans.emplace_back(code, model_->PlanLanguage(code));

  const absl::MutexLock lock(&mutex_);
  const auto retire = [&](const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    entry->retired = true;
    names_.Remove(entry->code);
    entries_.erase(entry->code);
    if (entry->loaded != nullptr && entry->leases == 0) Drop(entry.get());
  };
  std::set<std::string> present;
  for (auto& [code, plan] : plans) {
    const EntryPtr known = FindEntry(code);
    if (!plan.ok()) {
      result.broken.emplace_back(code, plan.status());
      // Missing is removed below; broken keeps what runs (its files may be half-written) or is listed as failed.
      if (absl::IsNotFound(plan.status()) &&
          plan.status().message().find("no such language folder") != absl::string_view::npos) {
        continue;
      }
      present.insert(code);
      if (known != nullptr && known->state != LanguageState::kFailed) continue;
      auto entry = std::make_shared<Entry>();
      if (known != nullptr) {
        entry->pinned = known->pinned;
        retire(known);
      }
      entry->code = code;
      entry->state = LanguageState::kFailed;
      entry->failure = plan.status();
      model_loader::LanguageConfig name_only;
      name_only.code = code;
      if (names_.Add(name_only).ok()) entries_[code] = entry;
      continue;
    }
    present.insert(code);
    if (known != nullptr && known->state != LanguageState::kFailed && known->plan.stamp == plan->stamp) continue;
    auto entry = std::make_shared<Entry>();
    entry->code = code;
    entry->plan = *std::move(plan);
    if (known != nullptr) {
      entry->pinned = known->pinned;
      entry->loads = known->loads;
      entry->wanted = known->state == LanguageState::kLoaded || known->pinned;
      retire(known);
    }
    if (options_.memory_budget == 0) entry->wanted = true;
    const absl::Status named = names_.Add(entry->plan.config);
    if (!named.ok()) {
      // Somebody else's alias: known by its code alone, and failed, so that nobody is translated by the wrong one.
      entry->state = LanguageState::kFailed;
      entry->failure = named;
      result.broken.emplace_back(code, named);
      model_loader::LanguageConfig name_only;
      name_only.code = code;
      if (!names_.Add(name_only).ok()) continue;
    } else {
      (known == nullptr ? result.added : result.replaced).push_back(code);
    }
    entries_[code] = std::move(entry);
  }
  std::vector<EntryPtr> gone;
  for (const auto& [code, entry] : entries_) {
    if (present.count(code) == 0) gone.push_back(entry);
  }
  for (const EntryPtr& entry : gone) {
    result.removed.push_back(entry->code);
    retire(entry);
  }
  changed_ = true;
  return result;
}

absl::Status LanguageStore::Load(std::string_view name, bool pin, absl::Time deadline) {
  auto code = Find(name);
  if (!code.ok()) return code.status();
  absl::Notification done;
  absl::Status status;
  Acquire({*code}, deadline, [&](absl::StatusOr<std::vector<LanguageLease>> leases) {
    status = leases.status();
    done.Notify();
  });
  done.WaitForNotification();
  TakeFailedLanguage(&status);
  if (!status.ok() || !pin) return status;
  const absl::MutexLock lock(&mutex_);
  const EntryPtr entry = FindEntry(*code);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("language ", *code, " has been removed"));
  entry->pinned = true;
  return absl::OkStatus();
}

absl::Status LanguageStore::Unload(std::string_view name, absl::Time deadline) {
  auto code = Find(name);
  if (!code.ok()) return code.status();
  {
    const absl::MutexLock lock(&mutex_);
    const EntryPtr entry = FindEntry(*code);
    if (entry == nullptr) return absl::NotFoundError(absl::StrCat("language ", *code, " has been removed"));
    entry->pinned = entry->wanted = false;
    if (entry->state == LanguageState::kLoaded) {
      if (entry->leases == 0) {
        Drop(entry.get());
      } else {
        entry->state = LanguageState::kDraining;
      }
    }
    const auto gone = [&entry] { return entry->state != LanguageState::kDraining; };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&gone), deadline)) {
      return absl::DeadlineExceededError(absl::StrCat("language ", *code, " is still used by ", entry->leases,
                                                      " requests; it goes with the last one"));
    }
  }
  Bury();
  return absl::OkStatus();
}

std::vector<LanguageInfo> LanguageStore::List() const {
  std::vector<LanguageInfo> list;
  const absl::MutexLock lock(&mutex_);
  std::set<std::string> done;
  const auto add = [&](const Entry& entry) {
    if (entry.code.empty() || !done.insert(entry.code).second) return;
    LanguageInfo& info = list.emplace_back();
    info.code = entry.code;
    info.state = entry.state;
    info.pinned = entry.pinned;
    info.failure = entry.failure;
    info.plan = entry.plan;
    info.loaded = entry.loaded;
    info.leases = entry.leases;
    info.loads = entry.loads;
    info.last_load = entry.last_load;
  };
  for (const std::string& code : model_->config().languages) {
    if (const EntryPtr entry = FindEntry(code)) add(*entry);
  }
  for (const auto& [code, entry] : entries_) add(*entry);
  return list;
}

LanguageStoreCounters LanguageStore::counters() const {
  const absl::MutexLock lock(&mutex_);
  LanguageStoreCounters counters = counters_;
  counters.waiting = static_cast<int64_t>(waiters_.size());
  counters.used_bytes = used_bytes_;
  counters.budget_bytes = options_.memory_budget;
  return counters;
}

std::vector<std::string> LanguageStore::missing() const {
  const absl::MutexLock lock(&mutex_);
  std::vector<std::string> missing;
  const auto& listed = model_->config().languages;
  for (const std::string& code : listed) {
    const EntryPtr entry = FindEntry(code);
    const bool served =
        entry != nullptr && entry->state != LanguageState::kFailed && (options_.memory_budget > 0 || entry->loads > 0);
    if (!served) missing.push_back(code);
  }
  for (const auto& [code, entry] : entries_) {
    const bool promised = entry->pinned && std::find(listed.begin(), listed.end(), code) == listed.end();
    if (promised && entry->state == LanguageState::kFailed) missing.push_back(code);
  }
  return missing;
}

}  // namespace koine::server
