// Values that change as a whole, from C++: functions that are called again, and what they throw; what they come to is in values.c. Its
// argument is a pool that it has to itself.
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <swarm_objects.hpp>

#include "check.hpp"

static void an_integer_changes_as_a_whole(const swarm::store &db, const swarm::store &other) {
    swarm::atomic mine(db, "n", 7), theirs(other, "n", 7);
    CHECK(mine.load() == 7 && mine.exchange(8) == 7 && theirs.load() == 8);
    std::uint64_t expected = 9;
    CHECK(!theirs.compare_exchange(expected, 10) && expected == 8);
    CHECK(theirs.compare_exchange(expected, 10) && expected == 8);
    CHECK(mine.fetch_add() == 10 && mine.fetch_add(5) == 11);
    int calls = 0;
    const auto [before, after] = mine.fetch_update([&](std::uint64_t value) {
        if (calls++ == 0) theirs.fetch_add(100);
        return 2 * value;
    });
    CHECK(before == 116 && after == 232 && calls == 2 && mine.load() == 232);
    CHECK(thrown([&] { swarm::atomic(db, "").load(); }) == SWARM_ERROR_ARGUMENT);
}

static void a_state_becomes_what_a_function_makes_of_it(const swarm::store &db, const swarm::store &other) {
    swarm::guarded mine(db, "state"), theirs(other, "state");
    CHECK(!mine.get());
    const auto appends = [](std::optional<std::string_view> state) { return std::string(state.value_or("")) + "!"; };
    CHECK(mine.update(appends) == "!" && theirs.update(appends) == "!!" && mine.get() == "!!");
    int calls = 0;
    CHECK(mine.update([&](auto state) {
        if (calls++ == 0) theirs.update(appends);
        return std::string(*state) + "?";
    }) == "!!!?");
    CHECK(calls == 2);
    CHECK(mine.update([](auto) { return std::string(); }).empty() && mine.get() == "");
    CHECK(thrown([&] { swarm::guarded(db, "n").get(); }) == SWARM_ERROR_OTHER_KIND);
    CHECK(thrown([&] { swarm::guarded(db, "n").update(appends); }) == SWARM_ERROR_OTHER_KIND);
}

static void what_a_function_throws_is_thrown_and_changes_nothing(const swarm::store &db) {
    swarm::guarded guarded(db, "thrown");
    guarded.update([](auto) { return std::string("before"); });
    std::string caught;
    try {
        guarded.update([](auto) -> std::string { throw std::runtime_error("not so"); });
    } catch (const std::runtime_error &error) {
        caught = error.what();
    }
    CHECK(caught == "not so" && guarded.get() == "before");
    // One of the library's goes through as it is.
    CHECK(thrown([&] {
              guarded.update([&](auto) { return std::to_string(swarm::atomic(db, "thrown").load()); });
          }) == SWARM_ERROR_OTHER_KIND);
    CHECK(guarded.get() == "before");
}

static void no_change_of_several_threads_is_lost(const swarm::store &db) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; thread++) {
        threads.emplace_back([&] {
            swarm::guarded numbers(db, "numbers");
            for (int n = 0; n < 25; n++) numbers.update([](auto state) { return std::string(state.value_or("")) + "x"; });
        });
    }
    for (auto &thread : threads) thread.join();
    CHECK(swarm::guarded(db, "numbers").get() == std::string(100, 'x'));
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    try {
        swarm::store db(argv[1], 2), other(argv[1], 1);
        an_integer_changes_as_a_whole(db, other);
        a_state_becomes_what_a_function_makes_of_it(db, other);
        what_a_function_throws_is_thrown_and_changes_nothing(db);
        no_change_of_several_threads_is_lost(db);
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 3;
    }
    std::cout << failures << " failures\n";
    return failures != 0;
}
