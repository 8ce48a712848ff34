// The languages of one model while it serves: loaded on first use, evicted by least recent use, added, replaced and
// removed while the server runs. The shared weights are never touched (DESIGN S7).
//
//   cold -> loading -> loaded -> (evicted) cold
//             |                    removed, replaced: no new leases; the memory goes with the last lease
//             -> failed (until the folder changes)
//
// Loading happens on one thread of low priority, for the oldest waiting request first. Memory is counted from plans
// before anything is allocated: a language is loaded only when it fits the budget beside those that may not be evicted
// (leased, pinned, or needed by the oldest waiting request); until then its request waits, at most to its deadline.
#ifndef KOINE_SERVER_LANGUAGES_LANGUAGE_STORE_H_
#define KOINE_SERVER_LANGUAGES_LANGUAGE_STORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "model_loader/model/model.h"

namespace koine::server {

enum class LanguageState : uint8_t { kCold, kLoading, kLoaded, kDraining, kFailed };
const char* Name(LanguageState state);  // "cold", ...

struct LanguageStoreOptions {
  // Bytes that all loaded languages together may take (packed tables, adapters, tokenizers; the shared part is not
  // counted). 0: no budget; every language loads before Start returns and stays.
  int64_t memory_budget = 0;
  // Loaded by Start and never evicted.
  std::vector<std::string> pinned = {};
  // What a loaded language must pass beside what its folder says of itself; may be null. Any thread.
  std::function<absl::Status(const model_loader::Language&)> check = nullptr;
  // By how much the loading thread is nicer than the server. Changes speed only; it cannot be taken back while the
  // thread runs.
  int loading_niceness = 5;
};

// Takes from an error of Acquire the code of the language that it is about; empty if it is about none in particular.
// The mark is for the server's own use: an error that goes to a caller must have been asked.
std::string TakeFailedLanguage(absl::Status* status);

// A language in use. Copies share the lease; the language cannot be evicted before the last one is gone.
using LanguageLease = std::shared_ptr<const model_loader::Language>;

struct LanguageInfo {
  std::string code;
  LanguageState state = LanguageState::kCold;
  bool pinned = false;
  absl::Status failure;             // of kFailed
  model_loader::LanguagePlan plan;  // what the folder says; empty for a folder that could not be read
  LanguageLease loaded;             // null unless loaded. Holding it does not keep the language from eviction's
                                    // bookkeeping, only its memory mapped: for reading figures, not for work
  int64_t leases = 0;
  int64_t loads = 0;         // since the start, earlier versions of its folder included
  absl::Duration last_load;  // how long the last one took
};

struct LanguageStoreCounters {
  int64_t loads = 0, failures = 0, evictions = 0;
  int64_t waiting = 0;       // requests that wait for a language now
  int64_t used_bytes = 0;    // of the budget: loaded, loading and draining languages
  int64_t budget_bytes = 0;  // 0: none
};

struct RescanResult {
  std::vector<std::string> added, replaced, removed;
  std::vector<std::pair<std::string, absl::Status>> broken;
};

// Thread-safe. Outlives its leases.
class LanguageStore {
 public:
  LanguageStore(std::shared_ptr<const model_loader::Model> model, LanguageStoreOptions options);
  ~LanguageStore();  // Stop

  // Reads the folders, loads what must be loaded before the first request, starts the loading thread. A folder that is
  // broken is left out (state kFailed) and harms nobody else; but an error tells where nothing is left of what
  // model.json lists (of everything, where it lists nothing), where a pinned language is unknown, and where the pinned
  // ones do not fit.
  absl::Status Start();
  // Ends waiting requests with UNAVAILABLE and joins the thread.
  void Stop();

  // False: the model has none, and requests leave them out; Find and Acquire then take "".
  bool has_languages() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What a request means, without loading anything. INVALID_ARGUMENT naming near ones.
  absl::StatusOr<std::string> Find(std::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Leases of these (canonical codes; repeats allowed), all or nothing, in order. `ready` is called exactly once:
  // before the function returns where all are loaded, else on the loading thread. Errors: NOT_FOUND (removed
  // meanwhile), FAILED_PRECONDITION (its folder is broken), RESOURCE_EXHAUSTED (can never fit beside what is pinned),
  // DEADLINE_EXCEEDED, UNAVAILABLE (stopping), or the status given to Cancel. The first three tell TakeFailedLanguage
  // which language it was.
  using Ready = std::function<void(absl::StatusOr<std::vector<LanguageLease>>)>;
  // Returns a ticket for Cancel, 0 if `ready` has been called.
  uint64_t Acquire(std::vector<std::string> codes, absl::Time deadline, Ready ready) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls the request's `ready` with `status` at once, if it still waits.
  void Cancel(uint64_t ticket, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Holds the folders against what is known: new ones are added, changed ones replaced, missing ones removed. Requests
  // that run keep what they have. Without a budget new ones load at once. Blocks; not for callback threads.
  RescanResult Rescan() ABSL_LOCKS_EXCLUDED(mutex_);

  // Loads (and pins, if asked), waiting until `deadline`. Blocks.
  absl::Status Load(std::string_view name, bool pin, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Unpins and evicts as soon as no request uses it; the next request loads it again. Blocks until it is gone or
  // `deadline` (DEADLINE_EXCEEDED: it is still draining).
  absl::Status Unload(std::string_view name, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // All languages, in the order of model.json, then by name. Empty where the model has none.
  std::vector<LanguageInfo> List() const ABSL_LOCKS_EXCLUDED(mutex_);
  LanguageStoreCounters counters() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Languages that model.json lists, or that are pinned, and that cannot be served: missing, broken, or, without a
  // budget, never loaded yet. One that was replaced or unloaded since is loaded again when a request comes. Empty:
  // ready.
  std::vector<std::string> missing() const ABSL_LOCKS_EXCLUDED(mutex_);
  const model_loader::Model& model() const { return *model_; }

 private:
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;
  struct Waiter {
    uint64_t ticket = 0;
    std::vector<EntryPtr> entries;
    absl::Time since;
    absl::Time deadline;
    Ready ready;
  };
  // Calls of `ready` that must happen without the lock.
  using Calls = std::vector<std::function<void()>>;

  absl::Status CheckAnyUsable(const RescanResult& found) const ABSL_LOCKS_EXCLUDED(mutex_);
  void LoadingThread() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Grantable(const Waiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<LanguageLease> Grant(absl::Span<const EntryPtr> entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the bytes of an entry that is about to load.
  void Count(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What to load now, room for it made: for the oldest request that lacks something, else what is wanted without one.
  EntryPtr NextToLoad(Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RescanResult RescanFolders() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends or grants every waiter that can be.
  void Settle(Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(const EntryPtr& entry) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes room for `bytes`; false if that must wait (or, *never, cannot be).
  bool MakeRoom(int64_t bytes, absl::Span<const EntryPtr> keep, bool* never) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Unmaps what was dropped, without the lock.
  void Bury() ABSL_LOCKS_EXCLUDED(mutex_);
  // Loads one entry outside the lock. REQUIRES state kLoading and its bytes counted.
  void LoadEntry(const EntryPtr& entry) ABSL_LOCKS_EXCLUDED(mutex_);
  EntryPtr FindEntry(std::string_view code) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status FailureOf(const Entry& entry);

  const std::shared_ptr<const model_loader::Model> model_;
  const LanguageStoreOptions options_;

  absl::Mutex rescan_mutex_;  // one rescan at a time; taken before mutex_
  mutable absl::Mutex mutex_;
  model_loader::LanguageNames names_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, EntryPtr, std::less<>> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);  // oldest first
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;  // of uses, for least recent use
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  LanguageStoreCounters counters_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const model_loader::Language>> dropped_ ABSL_GUARDED_BY(mutex_);  // for Bury
  // The oldest request has waited too long for room: no new leases before it has its own.
  bool starving_ ABSL_GUARDED_BY(mutex_) = false;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;  // something happened that the loading thread must look at
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_LANGUAGES_LANGUAGE_STORE_H_
