// The KV cache of a replica: the rules of triosim/serving/kv_cache.py, which says why they are so.
#pragma once

#include <cstdint>
#include <limits>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "serving_request.hpp"

namespace triosim::serving {

// What a run cannot go on from: Python plays it again and says what is wrong.
struct GiveUp : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// From keys to 32 or 64 bits, by open addressing.
template <class Value>
class KeyTable {
public:
    KeyTable() : slots_(64) {}

    std::size_t size() const { return size_; }
    bool has(std::int64_t key) const { return slots_[place(key)].used; }
    Value& at(std::int64_t key) { return slots_[place(key)].value; }

    // The value of a key, which is the given one if it had none.
    Value& emplace(std::int64_t key, Value value) {
        std::size_t at = place(key);
        if (!slots_[at].used) {
            if (2 * (size_ + 1) > slots_.size()) {
                grow();
                at = place(key);
            }
            slots_[at] = {key, value, true};
            ++size_;
        }
        return slots_[at].value;
    }

    void erase(std::int64_t key) {
        std::size_t hole = place(key);
        if (!slots_[hole].used) return;
        const std::size_t mask = slots_.size() - 1;
        for (std::size_t next = (hole + 1) & mask; slots_[next].used; next = (next + 1) & mask) {
            const std::size_t home = hash(slots_[next].key) & mask;
            if (((next - home) & mask) >= ((next - hole) & mask)) {
                slots_[hole] = slots_[next];
                hole = next;
            }
        }
        slots_[hole].used = false;
        --size_;
    }

    template <class Visit>
    void each(Visit visit) const {
        for (const Slot& slot : slots_)
            if (slot.used) visit(slot.key, slot.value);
    }

private:
    struct Slot {
        std::int64_t key = 0;
        Value value{};
        bool used = false;
    };

    static std::size_t hash(std::int64_t key) {  // the finaliser of SplitMix64
        auto bits = static_cast<std::uint64_t>(key);
        bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
        bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
        return bits ^ (bits >> 31);
    }
    std::size_t place(std::int64_t key) const {
        const std::size_t mask = slots_.size() - 1;
        std::size_t at = hash(key) & mask;
        while (slots_[at].used && slots_[at].key != key) at = (at + 1) & mask;
        return at;
    }
    void grow() {
        std::vector<Slot> old(2 * slots_.size());
        old.swap(slots_);
        for (const Slot& slot : old)
            if (slot.used) slots_[place(slot.key)] = slot;
    }

    std::vector<Slot> slots_;
    std::size_t size_ = 0;
};

class Cache {
public:
    // windowed: groups of layers that see so many positions, window.
    Cache(std::int64_t blocks, std::int64_t size, std::int64_t windowed, std::int64_t window, bool reuses, bool radix,
          bool by_use, const BlockKeys& keys)
        : blocks(blocks), size(size), windowed(windowed), window(window), reuses(reuses), free(blocks), radix_(radix),
          by_use_(by_use), counts_(reuses && !by_use && keys.offsets.empty()), keys_(keys), fresh_(blocks) {}

    const std::int64_t blocks, size, windowed, window;
    const bool reuses;
    std::int64_t free, peak = 0, hit_tokens = 0, looked_up_tokens = 0;

    std::int64_t of(std::int64_t tokens) const { return (tokens + size - 1) / size; }
    std::int64_t needs(const Request& request, std::int64_t tokens) const { return of(tokens) - request.blocks; }

    bool hold(Request& request, std::int64_t tokens) {
        if (windowed) give_back(request);
        const std::int64_t more = needs(request, tokens);
        if (more <= 0) return true;
        const std::int64_t taken = more + more * windowed;
        if (taken > free) return false;
        free -= taken;
        request.blocks += more;
        peak = std::max(peak, blocks - free);
        if (!reuses) return true;
        if (counts_) {
            take_idle(taken);
            return true;
        }
        take(request.held, more);
        if (windowed) take(request.held_windowed, more * windowed);
        return true;
    }

    std::int64_t match(const Request& request) const { return reuses ? matching(request) * size : 0; }

    bool start(Request& request, std::int64_t tokens) {
        if (!reuses) return hold(request, tokens);
        if (!begin(request, tokens)) return false;
        request.computed = request.cached = request.stored * size;
        hit_tokens += request.computed;
        looked_up_tokens += std::min(request.known, request.keys * size);
        return true;
    }

    void store(Request& request) {
        std::int64_t done = request.computed / size;
        if (done <= request.stored || request.stored >= request.keys) return;
        done = std::min(done, request.keys);
        if (counts_) {
            request.stored = done;
            return;
        }
        for (std::int64_t place = request.stored; place < done; ++place) {
            const std::int64_t key = keys_.key(request, place);
            const std::int32_t block = request.held[place];
            const std::int32_t other = stored_.emplace(key, block);
            if (other == block) {
                all_[block].key = key;
                all_[block].keyed = true;
            } else if (radix_) {  // another request has computed the same meanwhile
                let_go(block);
                share(other);
                request.held[place] = other;
            }
        }
        request.stored = done;
    }

    void release(Request& request) {
        if (counts_) return let_go(request);
        if (!reuses) free += request.blocks + windowed * (request.blocks - request.behind);
        for (auto block = request.held.rbegin(); block != request.held.rend(); ++block) {
            if (all_[*block].others) {
                --all_[*block].others;
            } else {
                let_go(*block);
            }
        }
        for (auto block = request.held_windowed.rbegin(); block != request.held_windowed.rend(); ++block) let_go(*block);
        request.held.clear();
        request.held_windowed.clear();
        request.blocks = request.behind = request.stored = 0;
    }

private:
    static constexpr std::int32_t none = -1;
    struct Block {
        std::int32_t before = none, after = none;  // among the idle ones, oldest first
        std::int32_t others = 0;                   // requests that hold it beside the first
        bool keyed = false, idle = false;
        std::int64_t key = 0, uses = 0, freed = 0;
    };
    using Entry = std::tuple<std::int64_t, std::int64_t, std::int32_t>;  // uses, when freed, block

    std::int64_t matching(const Request& request) const {
        const std::int64_t most = std::min((request.known - 1) / size, request.keys);
        if (counts_) return std::min(most, left(request));
        std::int64_t found = 0;
        while (found < most && stored_.has(keys_.key(request, found))) ++found;
        return found;
    }

    bool begin(Request& request, std::int64_t tokens) {
        const std::int64_t found = matching(request);
        if (counts_) return begin_counted(request, tokens, found);
        std::int64_t idle = 0;
        found_.clear();
        for (std::int64_t place = 0; place < found; ++place) {
            found_.push_back(stored_.at(keys_.key(request, place)));
            idle += all_[found_.back()].idle;
        }
        const std::int64_t more = std::max(of(tokens) - found, std::int64_t{0});
        const std::int64_t behind = windowed ? std::min(behind_of(found * size), found) : 0;
        const std::int64_t own = windowed * (found - behind);
        if (more + more * windowed + own + idle > free) return false;
        for (const std::int32_t block : found_) share(block);
        request.held.assign(found_.begin(), found_.end());
        request.blocks = request.stored = found;
        if (own) {
            free -= own;
            take(request.held_windowed, own);
        }
        request.behind = behind;
        return hold(request, tokens);
    }

    // --- where no request finds what another has computed: blocks are counted, in runs ---------------------------

    // Idle blocks that one request let go, of which the last is given up first.
    struct Run {
        std::int32_t before = none, after = none;  // among all of them, oldest first
        std::int64_t count = 0, number = 0;
    };

    // Blocks with a key that are left of what a request let go.
    std::int64_t left(const Request& request) const {
        if (request.run == none || runs_[request.run].number != request.let_go) return 0;
        return std::min(runs_[request.run].count, request.keyed);
    }

    bool begin_counted(Request& request, std::int64_t tokens, std::int64_t found) {
        const std::int64_t more = std::max(of(tokens) - found, std::int64_t{0});
        const std::int64_t behind = windowed ? std::min(behind_of(found * size), found) : 0;
        const std::int64_t own = windowed * (found - behind);
        if (more + more * windowed + own + found > free) return false;
        if (found != left(request)) throw GiveUp("a request that has computed more than it knows");
        if (found) {
            Run& run = runs_[request.run];
            run.count -= found;
            run.number = 0;  // nobody asks for the rest
            if (!run.count) remove(request.run);
            free -= found;
        }
        free -= own;
        take_idle(own);
        request.run = none;
        request.behind = behind;
        request.blocks = request.stored = found;
        return hold(request, tokens);
    }

    void take_idle(std::int64_t more) {
        const std::int64_t fresh = std::min(more, fresh_);
        fresh_ -= fresh;
        for (more -= fresh; more;) {
            Run& run = runs_[first_];
            const std::int64_t taken = std::min(more, run.count);
            run.count -= taken;
            more -= taken;
            if (!run.count) remove(first_);
        }
    }

    void let_go(Request& request) {
        const std::int64_t without = radix_ ? request.blocks - request.stored : 0;  // a key: given up before all others
        const std::int64_t kept = request.blocks - without;
        let_go_unnamed(without);
        request.run = kept ? insert(kept, ++frees_, last_, none) : none;
        request.let_go = frees_;
        request.keyed = request.stored;
        free += kept;
        let_go_unnamed(windowed * (request.blocks - request.behind));
        request.blocks = request.behind = request.stored = 0;
    }

    // Blocks that nobody will ask for.
    void let_go_unnamed(std::int64_t count) {
        if (!count) return;
        free += count;
        const std::int32_t beside = radix_ ? first_ : last_;
        if (beside != none && !runs_[beside].number) {
            runs_[beside].count += count;
        } else {
            insert(count, 0, radix_ ? none : last_, radix_ ? first_ : none);
        }
    }

    std::int32_t insert(std::int64_t count, std::int64_t number, std::int32_t before, std::int32_t after) {
        if (spare_.empty()) {
            spare_.push_back(static_cast<std::int32_t>(runs_.size()));
            runs_.emplace_back();
        }
        const std::int32_t at = spare_.back();
        spare_.pop_back();
        runs_[at] = {before, after, count, number};
        (before == none ? first_ : runs_[before].after) = at;
        (after == none ? last_ : runs_[after].before) = at;
        return at;
    }

    void remove(std::int32_t at) {
        const Run run = runs_[at];
        (run.before == none ? first_ : runs_[run.before].after) = run.after;
        (run.after == none ? last_ : runs_[run.after].before) = run.before;
        runs_[at].number = 0;
        spare_.push_back(at);
    }

    std::int64_t behind_of(std::int64_t computed) const {
        return std::max(computed - window + 1, std::int64_t{0}) / size;
    }

    void give_back(Request& request) {
        const std::int64_t behind = std::min(behind_of(request.computed), request.blocks);
        if (behind <= request.behind) return;
        const std::int64_t gone = (behind - request.behind) * windowed;
        request.behind = behind;
        if (!reuses) {
            free += gone;
            return;
        }
        if (counts_) return let_go_unnamed(gone);
        const auto first = request.held_windowed.begin();
        for (auto block = first; block != first + gone; ++block) let_go(*block);
        request.held_windowed.erase(first, first + gone);
    }

    void take(std::vector<std::int32_t>& held, std::int64_t more) {
        for (; more && static_cast<std::int64_t>(all_.size()) < blocks; --more) {
            if (all_.size() >= std::size_t{1} << 30) throw GiveUp("too many blocks to name");
            held.push_back(static_cast<std::int32_t>(all_.size()));
            all_.emplace_back();
        }
        for (; more; --more) {
            const std::int32_t block = by_use_ ? least_used() : first_;
            unlink(block);
            if (all_[block].keyed) {
                stored_.erase(all_[block].key);
                all_[block].keyed = false;
            }
            held.push_back(block);
        }
    }

    std::int32_t least_used() {
        while (true) {
            const auto [uses, freed, block] = order_.top();
            order_.pop();
            if (all_[block].idle && all_[block].freed == freed) {
                all_[block].uses = 0;
                return block;
            }
        }
    }

    void share(std::int32_t block) {
        if (by_use_) ++all_[block].uses;
        if (all_[block].idle) {
            unlink(block);
            --free;
        } else {
            ++all_[block].others;
        }
    }

    // Nobody holds a block any more.
    void let_go(std::int32_t block) {
        Block& own = all_[block];
        own.idle = true;
        ++free;
        const bool front = !by_use_ && !own.keyed && radix_;
        own.before = front ? none : last_;
        own.after = front ? first_ : none;
        (own.before == none ? first_ : all_[own.before].after) = block;
        (own.after == none ? last_ : all_[own.after].before) = block;
        if (by_use_) {
            own.freed = ++frees_;
            order_.emplace(own.keyed ? own.uses : -1, own.freed, block);
        }
    }

    void unlink(std::int32_t block) {
        Block& own = all_[block];
        own.idle = false;
        (own.before == none ? first_ : all_[own.before].after) = own.after;
        (own.after == none ? last_ : all_[own.after].before) = own.before;
        own.before = own.after = none;
    }

    const bool radix_, by_use_;
    const bool counts_;  // no request finds what another has computed, and who let go first is given up first
    const BlockKeys& keys_;
    std::vector<Block> all_;  // that have been taken at least once
    std::int32_t first_ = none, last_ = none;
    KeyTable<std::int32_t> stored_;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> order_;
    std::int64_t frees_ = 0;
    std::vector<std::int32_t> found_;
    std::int64_t fresh_;  // blocks that were never taken, where they are counted
    std::vector<Run> runs_;
    std::vector<std::int32_t> spare_;
};

}  // namespace triosim::serving
