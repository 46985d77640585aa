/* The kernel of `compute`: unit/native.rs compiles it, and defines the macros. */
#include "samite_kernel.h"

/* Each compiler splits vectors into what its processor has. */
typedef uint32_t Words __attribute__((vector_size(32)));
typedef uint64_t Pairs __attribute__((vector_size(32)));

enum { PARTS = 8 };

/* What was found so far. Words are added in pairs, as 64-bit numbers, which takes fewer instructions
 * than to widen each: the sum of the upper words is known, too, and is taken off at the end. */
struct Found {
    Words count;
    Pairs pairs, uppers;
};

static inline void look(struct Found *found, Words words, Words last) {
    const Words is_below = (Words)(words <= last); /* all bits, or none */
    const Pairs kept = (Pairs)(words & is_below);
    found->count -= is_below;
    found->pairs += kept;
    found->uppers += kept >> 32;
}

/* Replies with the sum and the number of the 32-bit words of grant DATA that are below a bound,
 * which is the payload. It reads PARTS parts at once: a processor fetches ahead within each page,
 * so with one part it waits for memory whenever a page ends. */
SAMITE_KERNEL int32_t below(uint8_t *payload, uint32_t len) {
    const Words *data = samite_base(DATA);
    const uint32_t blocks = samite_len(DATA) / sizeof *data;
    if (!data || len != 4)
        return 1;
    const uint32_t bound = *(uint32_t *)payload;
    const Words last = bound - 1 - (Words){}; /* "at most" needs no negation where "below" does */
    const uint32_t part = blocks / PARTS;
    struct Found all = {};
    for (uint32_t at = 0; bound && at < part; at++)
        for (uint32_t of = 0; of < PARTS; of++)
            look(&all, data[of * part + at], last);
    for (uint32_t at = PARTS * part; bound && at < blocks; at++)
        look(&all, data[at], last);
    uint64_t found[2] = {0, 0};
    for (int lane = 0; lane < 8; lane++)
        found[1] += all.count[lane];
    for (int lane = 0; lane < 4; lane++)
        found[0] += all.pairs[lane] - (all.uppers[lane] << 32) + all.uppers[lane];
    samite_reply(found, sizeof found);
    return 0;
}
