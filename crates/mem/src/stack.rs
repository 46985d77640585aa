//! How much stack a thread has left, for code that does not check it by itself.
//!
//! # Invariants
//! S1 `pthread_getattr_np` initialises the attributes if it returns 0. They are read then, and
//!    destroyed once.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

thread_local! {
    /// The addresses of this thread's stack; empty if nobody has asked yet.
    static STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Returns how many bytes of the stack of this thread are left below the caller, without its guard.
/// That of a main thread grows up to the limit which the process had when this was called first.
/// Returns `None` if it is not known: the system does not say it, or the caller runs on a stack
/// that is not the thread's own.
#[inline]
pub fn stack_left() -> Option<usize> {
    let mark = 0_u8;
    let here = (&raw const *std::hint::black_box(&mark)).addr();
    let (mut lowest, mut end) = STACK.get();
    if end == 0 {
        (lowest, end) = measured();
    }
    (lowest..end).contains(&here).then(|| here - lowest)
}

#[cold]
fn measured() -> (usize, usize) {
    let Range { start, end } = stack().unwrap_or(0..0);
    STACK.set((start, end));
    (start, end)
}

/// Asks the system for the stack of this thread.
fn stack() -> Option<Range<usize>> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut address, mut bytes, mut guard) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: S1; the other pointers are those of variables.
    let known = unsafe {
        let attributes = attributes.as_mut_ptr();
        if libc::pthread_getattr_np(libc::pthread_self(), attributes) != 0 {
            return None;
        }
        let known = libc::pthread_attr_getstack(attributes, &mut address, &mut bytes) == 0
            && libc::pthread_attr_getguardsize(attributes, &mut guard) == 0;
        libc::pthread_attr_destroy(attributes);
        known
    };
    let start = address.addr();
    // Some libraries count the guard as a part of the stack.
    known.then(|| start + guard..start + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "asks the system")]
    fn it_is_what_the_thread_was_given_and_shrinks() {
        #[inline(never)]
        fn deeper() -> Option<usize> {
            let bytes = [1_u8; 64 << 10];
            std::hint::black_box(&bytes);
            let left = stack_left();
            std::hint::black_box(&bytes);
            left
        }
        let thread = std::thread::Builder::new().stack_size(512 << 10);
        let measured = thread.spawn(|| (stack_left(), deeper())).unwrap();
        let (left, deep) = measured.join().unwrap();
        let (left, deep) = (left.unwrap(), deep.unwrap());
        // The system gives a part to variables of threads, and may reuse the stack of a thread that
        // has ended, of up to four times the size asked for.
        assert!((256 << 10..4 << 20).contains(&left), "{left}");
        assert!(deep + (64 << 10) <= left, "{deep}, {left}");
    }
}
