/* The kernels of `bench mobile` in C: unit/native.rs compiles them, and defines the macros. */
#include "samite_kernel.h"

/* Each compiler splits vectors into what its processor has. */
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint32_t Half __attribute__((vector_size(32)));
typedef uint64_t Sums __attribute__((vector_size(64)));

/* Adds ADDED to the word of grant COUNT. PROCESS makes the code differ from that of other runs. */
SAMITE_KERNEL int32_t add(uint8_t *payload, uint32_t len) {
    (void)payload;
    if (len != 0)
        return PROCESS;
    samite_add64(COUNT, 0, ADDED);
    return 0;
}

/* Replies with the sum and the number of the 32-bit words of grant DATA that are below a bound,
 * which is the payload. */
SAMITE_KERNEL int32_t below(uint8_t *payload, uint32_t len) {
    const Words *data = samite_base(DATA);
    const uint32_t blocks = samite_len(DATA) / sizeof *data;
    if (!data || len != 4)
        return 1;
    const Words bound = *(uint32_t *)payload - (Words){};
    Words count = {};
    Sums sum = {};
    for (uint32_t at = 0; at < blocks; at++) {
        const Words is_below = (Words)(data[at] < bound); /* all bits, or none */
        count -= is_below;
        const Words kept = data[at] & is_below;
        const Half low = __builtin_shufflevector(kept, kept, 0, 1, 2, 3, 4, 5, 6, 7);
        const Half high = __builtin_shufflevector(kept, kept, 8, 9, 10, 11, 12, 13, 14, 15);
        sum += __builtin_convertvector(low, Sums);
        sum += __builtin_convertvector(high, Sums);
    }
    uint64_t found[2] = {0, 0};
    for (int lane = 0; lane < 16; lane++)
        found[1] += count[lane];
    for (int lane = 0; lane < 8; lane++)
        found[0] += sum[lane];
    samite_reply(found, sizeof found);
    return 0;
}
