// Locks and the like, and watches, from C++: ownership, moves, exceptions; what they come to is in objects.c. Its argument is a pool that it has
// to itself.
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <swarm_objects.hpp>

using namespace std::chrono_literals;

#include "check.hpp"

static_assert(!std::is_copy_constructible_v<swarm::guard> && std::is_nothrow_move_constructible_v<swarm::guard>);
static_assert(!std::is_copy_constructible_v<swarm::member> && std::is_nothrow_move_constructible_v<swarm::member>);
static_assert(!std::is_copy_constructible_v<swarm::watch> && std::is_nothrow_move_constructible_v<swarm::watch>);

static void what_is_destroyed_is_released(const swarm::store &db, const swarm::store &other) {
    swarm::lock mine(db, "lock"), theirs(other, "lock");
    {
        auto guard = mine.acquire();
        CHECK(guard.token() == 1 && guard.is_held() && !guard.is_unsettled());
        CHECK(!theirs.acquire_within(20ms) && !theirs.acquire_within(-1ms));
        auto moved = std::move(guard);
        CHECK(moved.is_held() && guard.token() == 0);
        CHECK(thrown([&] { guard.is_held(); }) == SWARM_ERROR_ARGUMENT);
        CHECK(swarm::queue_view(db, "lock")->holder_count == 1);
    }
    auto guard = theirs.acquire_within(60s);
    CHECK(guard && guard->token() == 2);
    CHECK(mine.evict(2) && !mine.evict(2));
    auto next = mine.acquire();
    CHECK(next.is_unsettled());
    next.settle({"account 1", "account 2"});
    CHECK(!next.is_unsettled());
    CHECK(thrown([&] { guard->release(); }) == SWARM_ERROR_TAKEN_AWAY);
    next.release();
    CHECK(thrown([&] { next.done(); }) == SWARM_ERROR_ARGUMENT);
    CHECK(swarm::queue_view(db, "lock")->holder_count == 0 && !swarm::queue_view(db, "none"));
    CHECK(thrown([&] { swarm::once(db, "lock").begin(); }) == SWARM_ERROR_OTHER_KIND);
}

static void parts_are_counted(const swarm::store &db, const swarm::store &other) {
    swarm::rw_lock mine(db, "shared"), theirs(other, "shared");
    {
        auto reader = mine.read();
        auto another = theirs.read_within(60s);
        CHECK(another && !mine.write_within(20ms) && theirs.evict(reader.token()));
    }
    {
        auto writer = theirs.write();
        CHECK(!mine.read_within(20ms));
    }
    swarm::semaphore permits(db, "permits", 3);
    auto two = permits.acquire(2);
    auto last = permits.acquire_within(60s);
    CHECK(last && !permits.acquire_within(20ms) && permits.evict(two.token()) && permits.acquire_within(60s, 2));
    CHECK(thrown([&] { swarm::semaphore(db, "permits", 99).acquire(); }) == SWARM_ERROR_ARGUMENT);
}

static void what_is_done_once_is_done(const swarm::store &db, const swarm::store &other) {
    swarm::once once(db, "once");
    { auto given_up = once.begin(); }
    auto doing = once.begin();
    CHECK(doing && doing->token() == 2 && swarm::once(other, "once").evict(2));
    CHECK(thrown([&] { doing->done(); }) == SWARM_ERROR_TAKEN_AWAY);
    once.begin()->done();
    CHECK(!once.begin());
}

static void others_are_waited_for(const swarm::store &db, const swarm::store &other) {
    swarm::latch latch(db, "latch", 2);
    CHECK(!latch.wait_within(20ms) && latch.count_down() == 1 && swarm::latch(other, "latch", 2).count_down() == 0);
    latch.wait();

    swarm::barrier barrier(db, "barrier", 2);
    auto mine = barrier.join();
    CHECK(!mine.wait_within(20ms));
    {
        auto theirs = swarm::barrier(other, "barrier", 2).join();
        std::thread thread([&] { CHECK(theirs.wait_within(60s)->member_count == 2); });
        CHECK(mine.wait().member_count == 2);
        thread.join();
    }
    CHECK(barrier.view().member_count == 1 && barrier.evict(mine.seat()));
    CHECK(thrown([&] { mine.wait(); }) == SWARM_ERROR_TAKEN_AWAY);
    barrier.join().leave();
}

static void keys_are_watched(const swarm::store &db, const swarm::store &other) {
    swarm::watch watch(db, "watched");
    watch.changed();
    CHECK(!watch.value() && !watch.changed_within(20ms));
    std::thread thread([&] { other.put("watched", "value"); });
    CHECK(watch.changed_within(60s) && watch.value() == "value");
    thread.join();
    other.put("watched", "");
    watch.changed();
    CHECK(watch.value() == "");
    auto moved = std::move(watch);
    CHECK(!watch.value() && !moved.changed_within(0ms) && !moved.value());
    CHECK(thrown([&] { watch.changed(); }) == SWARM_ERROR_ARGUMENT);
    CHECK(thrown([&] { swarm::watch(db, ""); }) == SWARM_ERROR_ARGUMENT);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    try {
        swarm::store db(argv[1]), other(argv[1], 1);
        what_is_destroyed_is_released(db, other);
        parts_are_counted(db, other);
        what_is_done_once_is_done(db, other);
        others_are_waited_for(db, other);
        keys_are_watched(db, other);
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 3;
    }
    std::cout << failures << " failures\n";
    return failures != 0;
}
