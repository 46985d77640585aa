//! Buffers of the caller that an operation in flight may access.
//!
//! An operation that is still in flight when its call returns needs its buffer for longer than a
//! borrow lasts. Either it owns the buffer ([`ReadBuf::owned`], [`WriteBuf::owned`]; a forgotten
//! handle then only leaks), or the buffer is lent inside a [`scope`] that ends only after every
//! loan has been returned, as in `std::thread::scope`.
//!
//! # Invariants
//! L1 A loan's pointer and length are those of a borrow that outlives the scope (`'env`).
//! L2 The scope returns, or unwinds, only after the count of loans is zero. If the loans cannot be
//!    recalled (the peer that may still write to the buffer neither acts nor dies), the process
//!    aborts: a buffer that another process may write must not be handed back.
//! L3 A [`WriteBuf`] is the only path to its bytes in this process while it lives (it was made from
//!    `&mut`); other processes write disjoint pieces through the kernel.
//! L4 Any thread may return a loan. The scope's own thread counts the loans that it lent and took
//!    back itself without atomics; loans returned in other threads are counted by an atomic, after
//!    their last access.
//! L5 In a fork, no loan of its parent comes back, and no scope waits for one: the thread of the
//!    scope may not exist there, and another one may have its stack. Whoever drives the operations
//!    neither reads nor writes the buffers there, since nothing arrives in a fork.

use crate::SharedBytes;
use crate::ring::Body;
use crate::sync::{AtomicU64, Ordering};
use crate::sys::OwnerProcess;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What to do about loans that are still out when a scope ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Recall {
    /// Progress was possible; check again.
    Again,
    /// Recalling is hopeless; the text names the peer that has the buffer. The process will abort.
    Abort(String),
}

/// Lends buffers to operations; see [`scope`].
#[derive(Debug)]
pub struct Lender<'scope, 'env: 'scope> {
    out: &'scope Out,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'env> Lender<'_, 'env> {
    /// Lends a buffer for reading.
    #[inline(always)]
    pub fn read(&self, buffer: &'env [u8]) -> ReadBuf {
        ReadBuf(Source::Lent(
            buffer.as_ptr(),
            buffer.len(),
            Loan::new(self.out),
        ))
    }

    /// Lends a buffer for writing.
    #[inline(always)]
    pub fn write(&self, buffer: &'env mut [u8]) -> WriteBuf {
        WriteBuf(Target::Lent(
            buffer.as_mut_ptr(),
            buffer.len(),
            Loan::new(self.out),
        ))
    }
}

/// Runs `f` with a lender, then calls `recall` until every loan has been returned. A panic of
/// `recall` is passed on after that.
pub fn scope<'env, R>(
    mut recall: impl FnMut() -> Recall,
    f: impl for<'scope> FnOnce(&'scope Lender<'scope, 'env>) -> R,
) -> R {
    let out = Out {
        process: OwnerProcess::current(),
        thread: ThreadMark::of_this(),
        lent: Cell::new(0),
        back: AtomicU64::new(0),
    };
    let lender = Lender {
        out: &out,
        scope: PhantomData,
        env: PhantomData,
    };
    let guard = Guard {
        out: &out,
        recall: &mut recall,
    };
    let result = f(&lender);
    drop(guard);
    result
}

/// Recalls the loans, also when `f` unwinds.
struct Guard<'a> {
    out: &'a Out,
    recall: &'a mut dyn FnMut() -> Recall,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut panic = None;
        while self.out.is_lent() {
            // L2. Recalling runs code of the program (handlers of messages). The state behind it
            // must survive one more call, or the loans are never returned, which ends in `Abort`.
            match catch_unwind(AssertUnwindSafe(&mut *self.recall)) {
                Ok(Recall::Again) => {}
                // There is no caller to report this to.
                Ok(Recall::Abort(why)) => {
                    crate::sys::abort(&format!("a buffer cannot be taken back: {why}"))
                }
                Err(payload) => {
                    panic.get_or_insert(payload);
                }
            }
        }
        match panic {
            // A second panic during the unwinding of the first one would end the process.
            Some(payload) if !std::thread::panicking() => resume_unwind(payload),
            _ => {}
        }
    }
}

/// Identifies a thread: the address of a thread-local byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadMark(usize);

impl ThreadMark {
    #[inline(always)]
    fn of_this() -> Self {
        thread_local! {
            static MARK: u8 = const { 0 };
        }
        MARK.with(|mark| ThreadMark(std::ptr::from_ref(mark).addr()))
    }
}

/// Number of loans of a scope that are out (L4).
#[derive(Debug)]
struct Out {
    process: OwnerProcess,
    /// The thread of the scope. It lives as long as the scope, so no other thread has this mark.
    thread: ThreadMark,
    /// Loans by this thread, minus those returned in it.
    lent: Cell<u64>,
    /// Loans returned in other threads.
    back: AtomicU64,
}

impl Out {
    fn is_lent(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `Loan::drop`: the bytes written into the
        // buffers are visible.
        let are_out = self.lent.get() != self.back.load(Ordering::Acquire);
        are_out && self.process.is_current() // L5
    }
}

/// One loan in the scope's count.
#[derive(Debug)]
struct Loan(*const Out, OwnerProcess);

impl Loan {
    #[inline(always)]
    fn new(out: &Out) -> Self {
        out.lent.set(out.lent.get() + 1);
        Loan(out, out.process)
    }
}

impl Drop for Loan {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.1.is_current() {
            return; // L5
        }
        // SAFETY: it lives in `scope`'s frame, which cannot end before this count is gone (L2).
        let thread = unsafe { &(*self.0).thread };
        if *thread == ThreadMark::of_this() {
            // SAFETY: as above; only the scope's thread uses this cell (L4), and this is it.
            let lent = unsafe { &(*self.0).lent };
            lent.set(lent.get() - 1);
        } else {
            // SAFETY: as above; it is an atomic. The scope may end as soon as this has been
            // incremented.
            let back = unsafe { &(*self.0).back };
            // ORDERING: Release pairs with the Acquire in `is_lent`.
            back.fetch_add(1, Ordering::Release);
        }
    }
}

// SAFETY: a loan is dropped in any thread (L4), and its bytes are those of a borrow of plain bytes
// (L1), which any thread may read while none writes them.
unsafe impl Send for ReadBuf {}
// SAFETY: as above; it is the only path to its bytes (L3), in any thread.
unsafe impl Send for WriteBuf {}

/// Bytes that an operation may read.
#[derive(Debug)]
pub struct ReadBuf(Source);

#[derive(Debug)]
enum Source {
    Lent(
        *const u8,
        usize,
        #[expect(dead_code, reason = "counts until it is dropped")] Loan,
    ),
    Owned(Vec<u8>),
    Shared(SharedBytes),
}

impl ReadBuf {
    /// Wraps a buffer that the operation owns.
    pub fn owned(bytes: Vec<u8>) -> Self {
        ReadBuf(Source::Owned(bytes))
    }

    /// Returns true if it is borrowed from the caller, in a [`scope`].
    pub fn is_lent(&self) -> bool {
        matches!(self.0, Source::Lent(..))
    }

    /// Wraps bytes in shared memory.
    pub fn shared(bytes: SharedBytes) -> Self {
        ReadBuf(Source::Shared(bytes))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Source::Lent(_, len, _) => *len as u64,
            Source::Owned(bytes) => bytes.len() as u64,
            Source::Shared(bytes) => bytes.len(),
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address in this process, for a kernel copy by the peer.
    pub fn address(&self) -> u64 {
        match &self.0 {
            Source::Lent(pointer, ..) => *pointer as u64,
            Source::Owned(bytes) => bytes.as_ptr() as u64,
            Source::Shared(bytes) => bytes.address(),
        }
    }

    /// Returns a part of the bytes.
    pub fn body(&self, offset: u64, len: u64) -> Body<'_> {
        let end = offset.checked_add(len);
        let inside = end.is_some_and(|end| end <= self.len());
        assert!(inside, "beyond the end of a buffer");
        match &self.0 {
            // SAFETY: L1 and L2: the borrow is alive while this value is; range checked above.
            Source::Lent(pointer, ..) => Body::Slice(unsafe {
                std::slice::from_raw_parts(pointer.add(offset as usize), len as usize)
            }),
            Source::Owned(bytes) => Body::Slice(&bytes[offset as usize..(offset + len) as usize]),
            Source::Shared(bytes) => Body::Shared { bytes, offset, len },
        }
    }

    /// Returns the buffer, if the operation owned it.
    pub fn into_owned(self) -> Option<Vec<u8>> {
        match self.0 {
            Source::Owned(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Copies a piece into another process, through the kernel; returns the number of bytes copied.
    pub fn copy_to_process(
        &self,
        offset: u64,
        len: u64,
        pid: i32,
        address: u64,
    ) -> std::io::Result<u64> {
        match self.body(offset, len) {
            Body::Slice(slice) => crate::sys::write_process(pid, address, slice).map(|n| n as u64),
            Body::Shared { bytes, offset, len } => {
                bytes.write_to_process(offset, len, pid, address)
            }
        }
    }
}

/// Bytes that an operation may write.
#[derive(Debug)]
pub struct WriteBuf(Target);

#[derive(Debug)]
enum Target {
    Lent(
        *mut u8,
        usize,
        #[expect(dead_code, reason = "counts until it is dropped")] Loan,
    ),
    Owned(Vec<u8>),
    Shared(SharedBytes),
}

impl WriteBuf {
    /// Wraps a buffer that the operation owns.
    pub fn owned(bytes: Vec<u8>) -> Self {
        WriteBuf(Target::Owned(bytes))
    }

    /// Returns true if it is borrowed from the caller, in a [`scope`].
    pub fn is_lent(&self) -> bool {
        matches!(self.0, Target::Lent(..))
    }

    /// Wraps bytes in shared memory.
    pub fn shared(bytes: SharedBytes) -> Self {
        WriteBuf(Target::Shared(bytes))
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub fn len(&self) -> u64 {
        match &self.0 {
            Target::Lent(_, len, _) => *len as u64,
            Target::Owned(bytes) => bytes.len() as u64,
            Target::Shared(bytes) => bytes.len(),
        }
    }

    /// Returns true if the buffer has no space.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address in this process, for a kernel copy by the peer.
    pub fn address(&mut self) -> u64 {
        match &mut self.0 {
            Target::Lent(pointer, ..) => *pointer as u64,
            Target::Owned(bytes) => bytes.as_mut_ptr() as u64,
            Target::Shared(bytes) => bytes.address(),
        }
    }

    /// Returns the bytes if they are in shared memory: a peer that maps it may write them directly.
    pub fn as_shared(&self) -> Option<&SharedBytes> {
        match &self.0 {
            Target::Shared(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Fills a piece from a body.
    #[inline(always)]
    pub fn fill(&mut self, offset: u64, from: &Body<'_>) {
        let len = from.len();
        match self.private(offset, len) {
            Ok(slice) => from.copy_to(0, slice),
            Err(shared) => from.copy_to_shared(shared, offset),
        }
    }

    /// Copies a piece out of another process, through the kernel; returns the number of bytes.
    pub fn fill_from_process(
        &mut self,
        offset: u64,
        len: u64,
        pid: i32,
        address: u64,
    ) -> std::io::Result<u64> {
        match self.private(offset, len) {
            Ok(slice) => crate::sys::read_process(pid, address, slice).map(|n| n as u64),
            Err(shared) => shared.read_from_process(offset, len, pid, address),
        }
    }

    /// Returns the private bytes of a piece, or the shared range that the buffer is.
    #[inline(always)]
    fn private(&mut self, offset: u64, len: u64) -> Result<&mut [u8], &SharedBytes> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len());
        assert!(
            end.is_some(),
            "bytes {offset}+{len} lie beyond the end of a buffer"
        );
        let (offset, len) = (offset as usize, len as usize);
        match &mut self.0 {
            Target::Lent(pointer, ..) => {
                // SAFETY: L1, L2, L3; range checked above.
                Ok(unsafe { std::slice::from_raw_parts_mut(pointer.add(offset), len) })
            }
            Target::Owned(bytes) => Ok(&mut bytes[offset..offset + len]),
            Target::Shared(bytes) => Err(bytes),
        }
    }

    /// Returns the buffer, if the operation owned it.
    pub fn into_owned(self) -> Option<Vec<u8>> {
        match self.0 {
            Target::Owned(bytes) => Some(bytes),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_only_when_every_loan_is_back() {
        let mut buffer = [0u8; 4];
        let held = Cell::new(None);
        let recalls = Cell::new(0);
        scope(
            || {
                recalls.set(recalls.get() + 1);
                if recalls.get() == 3 {
                    drop(held.take());
                }
                Recall::Again
            },
            |lender| {
                let mut loan: WriteBuf = lender.write(&mut buffer);
                loan.fill(1, &Body::Slice(b"ab"));
                held.set(Some(loan));
            },
        );
        assert_eq!((recalls.get(), buffer), (3, [0, b'a', b'b', 0]));
    }

    /// After the panic is caught, the buffer is the caller's alone again.
    #[test]
    fn a_recall_that_panics_returns_no_buffer_early() {
        for f_panics in [false, true] {
            let mut buffer = [0u8; 4];
            let held = Cell::new(None);
            let recalls = Cell::new(0);
            let recall = || {
                recalls.set(recalls.get() + 1);
                assert!(recalls.get() != 1, "of the first recall");
                if recalls.get() == 3 {
                    drop(held.take());
                }
                Recall::Again
            };
            let ended = catch_unwind(AssertUnwindSafe(|| {
                scope(recall, |lender| {
                    held.set(Some(lender.write(&mut buffer)));
                    assert!(!f_panics, "of the scope");
                });
            }));
            let payload = ended.expect_err("the panic is passed on");
            let what = if f_panics {
                "of the scope"
            } else {
                "of the first recall"
            };
            assert_eq!(payload.downcast_ref::<&str>(), Some(&what));
            assert!(held.take().is_none(), "the loan came back");
            assert_eq!(recalls.get(), 3);
        }
    }

    /// Each loan is counted once, whichever thread returns it, and its writes are visible here.
    #[test]
    fn loans_come_back_in_other_threads() {
        for round in 0..100u8 {
            let mut buffers = [[0u8; 8]; 4];
            let (give, take) = std::sync::mpsc::channel::<WriteBuf>();
            std::thread::scope(|threads| {
                threads.spawn(move || {
                    while let Ok(mut loan) = take.recv() {
                        loan.fill(0, &Body::Slice(&[round; 8]));
                    }
                });
                let lent = &mut buffers;
                scope(
                    || Recall::Again,
                    move |lender| {
                        for (index, buffer) in lent.iter_mut().enumerate() {
                            let loan = lender.write(buffer);
                            if index % 2 == 0 {
                                give.send(loan).unwrap();
                            }
                        }
                    },
                );
                assert_eq!(buffers, [[round; 8], [0; 8], [round; 8], [0; 8]]);
            });
        }
    }

    #[test]
    fn owned_buffers_come_back() {
        let mut buffer = WriteBuf::owned(vec![0; 3]);
        buffer.fill(0, &Body::Slice(b"xyz"));
        assert_eq!(buffer.into_owned().unwrap(), b"xyz");
    }

    #[test]
    #[should_panic(expected = "beyond the end")]
    fn a_piece_beyond_the_end_is_a_bug() {
        WriteBuf::owned(vec![0; 3]).fill(2, &Body::Slice(b"xyz"));
    }
}
