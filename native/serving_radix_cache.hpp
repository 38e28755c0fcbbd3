// Prefixes as a radix tree over pieces of text, of which the least recently used leaves are given up first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "serving_cache.hpp"
#include "serving_idle_runs.hpp"
#include "serving_key_table.hpp"

namespace triosim::serving {

// Who holds a block of a tree holds all before it.  So of a piece of text, the blocks under one hash, a beginning is
// there, a beginning of that is held, and the rest lies idle in runs, of which the later in the text was let go earlier.
class RadixCache final : public PrefixCache {
public:
    RadixCache(std::int64_t blocks, std::int64_t size, const BlockKeys& keys)
        : PrefixCache(blocks, size, 0, 0), keys_(keys), per_(keys.per()), idle_(blocks) {}

    void release(Request& request) override {
        idle_.push_unnamed(request.blocks - request.stored, true);
        free += request.blocks - request.stored;
        for (std::size_t at = request.held.size(); at-- > 0;) {
            const Span span = span_of(request, static_cast<std::int64_t>(at));
            const std::int64_t held = std::min(request.stored - span.first, span.length);
            Piece& piece = pieces_[request.held[at]];
            drop(piece, held);
            const std::int64_t above = top(piece);
            if (held > above) {
                piece.idle.push_back(idle_.push_back(held - above, request.held[at] + 1));
                free += held - above;
            }
        }
        request.held.clear();
        request.blocks = request.behind = request.stored = 0;
    }

protected:
    std::int64_t matching(const Request& request) const override {
        std::int64_t found = 0;
        each(request, most(request), [&](const Piece&, std::int32_t, std::int64_t there) { found += there; });
        return found;
    }

    bool begin(Request& request, std::int64_t tokens) override {
        std::int64_t found = 0, idle = 0;
        found_.clear();
        each(request, most(request), [&](const Piece& piece, std::int32_t at, std::int64_t there) {
            found += there;
            idle += std::max(there - top(piece), std::int64_t{0});
            found_.push_back({at, there});
        });
        const std::int64_t more = std::max(of(tokens) - found, std::int64_t{0});
        if (more + idle > free) return false;
        request.held.clear();
        for (const auto& [at, there] : found_) {
            share(pieces_[at], there);
            add(pieces_[at], there);
            request.held.push_back(at);
        }
        request.blocks = request.stored = found;
        return hold(request, tokens);
    }

    void store_up_to(Request& request, std::int64_t done) override {
        for (std::int64_t at = request.stored; at < done;) {
            const std::int64_t number = piece_of(request, at);
            const Span span = span_of(request, number);
            const std::int64_t begin = at - span.first, end = std::min(done - span.first, span.length);
            const std::int32_t known = number < static_cast<std::int64_t>(request.held.size()) ? request.held[number]
                                                                                                : named(span.key);
            Piece& piece = pieces_[known];
            const std::int64_t same = std::clamp(piece.stored - begin, std::int64_t{0}, end - begin);
            if (same) {  // another request has computed the same meanwhile
                idle_.push_unnamed(same, true);
                free += same;
                share(piece, begin + same);
            }
            piece.stored = std::max(piece.stored, end);
            if (begin) {
                drop(piece, begin);
            } else {
                request.held.push_back(known);
            }
            add(piece, end);
            at = span.first + end;
        }
    }

    void take(Request&, std::int64_t more) override {
        idle_.take(more, [&](std::int32_t run, std::int64_t taken) {
            const std::int64_t number = idle_[run].number;
            if (number == IdleRuns::unnamed) return;
            Piece& piece = pieces_[number - 1];
            piece.stored -= taken;
            if (idle_[run].count) return;
            piece.idle.erase(piece.idle.begin());
            if (piece.stored) return;
            table_.erase(piece.key);
            spare_.push_back(static_cast<std::int32_t>(number - 1));
        });
    }

private:
    struct Piece {
        std::int64_t key = 0, stored = 0;  // blocks that are there, from the first
        std::int64_t whole = 0;            // requests that hold all blocks that hashes of the traffic cover
        std::vector<std::int64_t> held;    // how many each other request holds that holds some
        std::vector<std::int32_t> idle;    // runs of the rest, from the last blocks to the first
    };
    struct Span {
        std::int64_t key, first, length;  // of a piece of a request: its blocks
    };
    struct Found {
        std::int32_t at;
        std::int64_t there;
    };

    // What only the request itself has is one piece after all others.
    std::int64_t piece_of(const Request& request, std::int64_t place) const {
        return place < request.shared ? place / per_ : (request.shared + per_ - 1) / per_;
    }

    Span span_of(const Request& request, std::int64_t number) const {
        const std::int64_t first = number * per_;
        if (first >= request.shared)
            return {keys_.key(request, request.keys), request.shared, std::numeric_limits<std::int64_t>::max()};
        return {keys_.key(request, first), first, std::min(per_, request.shared - first)};
    }

    // Blocks that are held.
    std::int64_t top(const Piece& piece) const {
        std::int64_t most = piece.whole ? per_ : 0;
        for (const std::int64_t held : piece.held) most = std::max(most, held);
        return most;
    }

    void add(Piece& piece, std::int64_t held) {
        if (held == per_) {
            ++piece.whole;
        } else {
            piece.held.push_back(held);
        }
    }

    void drop(Piece& piece, std::int64_t held) {
        if (held == per_) {
            --piece.whole;
        } else {
            piece.held.erase(std::find(piece.held.begin(), piece.held.end(), held));
        }
    }

    // Told of the pieces of the longest prefix that is there, and how much of each, of no more than so many blocks.
    template <class Told>
    void each(const Request& request, std::int64_t limit, Told told) const {
        for (std::int64_t number = 0, at = 0; at < limit; ++number) {
            const Span span = span_of(request, number);
            if (!table_.has(span.key)) return;
            const std::int32_t known = table_.at(span.key);
            const std::int64_t whole = std::min(span.length, limit - at);
            const std::int64_t there = std::min(pieces_[known].stored, whole);
            if (there) told(pieces_[known], known, there);
            if (there < whole) return;
            at += there;
        }
    }

    // Blocks up to a place are held by one more.
    void share(Piece& piece, std::int64_t end) {
        for (std::int64_t from = top(piece); from < end;) {
            IdleRuns::Run& run = idle_[piece.idle.back()];
            const std::int64_t taken = std::min(end - from, run.count);
            run.count -= taken;
            free -= taken;
            from += taken;
            if (run.count) continue;
            idle_.remove(piece.idle.back());
            piece.idle.pop_back();
        }
    }

    std::int32_t named(std::int64_t key) {
        if (table_.has(key)) return table_.at(key);
        if (spare_.empty()) {
            if (pieces_.size() >= std::size_t{1} << 30) throw GiveUp("too many pieces of text");
            spare_.push_back(static_cast<std::int32_t>(pieces_.size()));
            pieces_.emplace_back();
        }
        const std::int32_t at = spare_.back();
        spare_.pop_back();
        pieces_[at].key = key;
        pieces_[at].stored = 0;
        return table_.emplace(key, at);
    }

    const BlockKeys& keys_;
    const std::int64_t per_;  // blocks that a hash covers
    IdleRuns idle_;
    std::vector<Piece> pieces_;
    std::vector<std::int32_t> spare_;
    KeyTable<std::int32_t> table_;
    std::vector<Found> found_;
};

}  // namespace triosim::serving
