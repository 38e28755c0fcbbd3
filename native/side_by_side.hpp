// Pieces of work that know nothing of each other, on the processors that are there.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace triosim {

// Threads worth starting for so many pieces of work.
inline std::size_t workers(std::size_t pieces) {
    return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, std::max<std::size_t>(pieces, 1));
}

// Calls piece(number, worker) once for each number below `pieces`, in any order, with workers numbered from 0.  The first
// is the thread that calls, so that it can be interrupted; what a piece throws ends all, and is thrown again here.
template <class Piece>
void side_by_side(std::size_t pieces, std::size_t workers, Piece piece) {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    std::mutex first;
    const auto run = [&](std::size_t worker) {
        try {
            for (std::size_t number; !failed && (number = next++) < pieces;) piece(number, worker);
        } catch (...) {
            const std::lock_guard only(first);
            if (!error) error = std::current_exception();
            failed = true;
        }
    };
    {
        std::vector<std::jthread> others;
        for (std::size_t worker = 1; worker < workers; ++worker) {
            try {
                others.emplace_back(run, worker);
            } catch (const std::system_error&) {
                break;  // there are no more threads to be had: those that run do it all
            }
        }
        run(0);
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace triosim
