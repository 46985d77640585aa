/* The kernel of first calls: unit/native.rs compiles it, and defines the macros. */
#include "samite_kernel.h"

/* Adds ADDED to the word of grant COUNT. PROCESS makes the code differ from that of other runs. */
SAMITE_KERNEL int32_t add(uint8_t *payload, uint32_t len) {
    (void)payload;
    if (len != 0)
        return PROCESS;
    samite_add64(COUNT, 0, ADDED);
    return 0;
}
