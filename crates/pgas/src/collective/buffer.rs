//! The buffers of collectives: private slices or parts of symmetric memory.
//!
//! The caller's side is typed ([`Source`], [`Target`]); the engines move bytes ([`Input`], [`Output`]).

use crate::segment::Part;
use crate::{Elem, GlobalPtr, Team};
use samite_mem::SharedBytes;
use std::borrow::Cow;

/// What a member gives: a slice, or a part of its symmetric memory, which the others then read where it
/// lies.
#[derive(Debug)]
pub enum Source<'a, T> {
    /// Private memory.
    Slice(&'a [T]),
    /// Symmetric memory.
    Part(Part<'a, T>),
}

/// Where a member gets its result: a slice, or a part of its symmetric memory, which the others may then
/// write into. Source and target of a call may overlap; that costs a copy.
#[derive(Debug)]
pub enum Target<'a, T> {
    /// Private memory.
    Slice(&'a mut [T]),
    /// Symmetric memory.
    Part(Part<'a, T>),
}

impl<'a, T> From<&'a [T]> for Source<'a, T> {
    fn from(slice: &'a [T]) -> Self {
        Source::Slice(slice)
    }
}
impl<'a, T> From<&'a mut [T]> for Source<'a, T> {
    fn from(slice: &'a mut [T]) -> Self {
        Source::Slice(slice)
    }
}
impl<'a, T> From<&'a Vec<T>> for Source<'a, T> {
    fn from(slice: &'a Vec<T>) -> Self {
        Source::Slice(slice)
    }
}
impl<'a, T, const N: usize> From<&'a [T; N]> for Source<'a, T> {
    fn from(slice: &'a [T; N]) -> Self {
        Source::Slice(slice)
    }
}
impl<'a, T> From<Part<'a, T>> for Source<'a, T> {
    fn from(part: Part<'a, T>) -> Self {
        Source::Part(part)
    }
}
impl<'a, T> From<&'a mut [T]> for Target<'a, T> {
    fn from(slice: &'a mut [T]) -> Self {
        Target::Slice(slice)
    }
}
impl<'a, T> From<&'a mut Vec<T>> for Target<'a, T> {
    fn from(slice: &'a mut Vec<T>) -> Self {
        Target::Slice(slice)
    }
}
impl<'a, T, const N: usize> From<&'a mut [T; N]> for Target<'a, T> {
    fn from(slice: &'a mut [T; N]) -> Self {
        Target::Slice(slice)
    }
}
impl<'a, T> From<Part<'a, T>> for Target<'a, T> {
    fn from(part: Part<'a, T>) -> Self {
        Target::Part(part)
    }
}

impl<'a, T: Elem> Source<'a, T> {
    /// How many elements.
    pub fn len(&self) -> u64 {
        match self {
            Source::Slice(slice) => slice.len() as u64,
            Source::Part(part) => part.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn input(self, team: &Team) -> Input<'a> {
        match self {
            Source::Slice(slice) => Input::Private(Cow::Borrowed(crate::bytes_of(slice))),
            Source::Part(part) => part.input(team),
        }
    }
}

impl<'a, T: Elem> Target<'a, T> {
    /// How many elements.
    pub fn len(&self) -> u64 {
        match self {
            Target::Slice(slice) => slice.len() as u64,
            Target::Part(part) => part.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn output(self, team: &Team) -> Output<'a> {
        match self {
            Target::Slice(slice) => Output::Private(crate::bytes_of_mut(slice)),
            Target::Part(part) => Output::Shared(part.bytes().clone(), part.reach(team)),
        }
    }

    /// As a source: what the root of a broadcast gives.
    pub(super) fn into_input(self, team: &Team) -> Input<'a> {
        match self {
            Target::Slice(slice) => Input::Private(Cow::Borrowed(crate::bytes_of(slice))),
            Target::Part(part) => part.input(team),
        }
    }
}

/// Both ends of a call; a source that overlaps its target is copied first.
pub(super) fn ends<'a, T: Elem>(
    team: &Team,
    from: Source<'a, T>,
    into: Target<'a, T>,
) -> (Input<'a>, Output<'a>) {
    let overlap = match (&from, &into) {
        (Source::Part(from), Target::Part(into)) => from.overlaps(into),
        _ => false,
    };
    let input = from.input(team);
    let input = match overlap {
        true => Input::Private(Cow::Owned(input.bytes().into_owned())),
        false => input,
    };
    (input, into.output(team))
}

impl<'a, T: Elem> Part<'a, T> {
    fn input(self, team: &Team) -> Input<'a> {
        Input::Shared(self.bytes().clone(), self.reach(team))
    }
}

/// The bytes that a member gives.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    Private(Cow<'a, [u8]>),
    /// Of this unit's segment; with a pointer if the other members may read it there.
    Shared(SharedBytes, Option<GlobalPtr<u8>>),
}

impl Input<'_> {
    /// Of a member that gives nothing.
    pub(crate) const NOTHING: Input<'static> = Input::Private(Cow::Borrowed(&[]));

    /// Where the others read it.
    pub(crate) fn pointer(&self) -> Option<GlobalPtr<u8>> {
        match self {
            Input::Private(_) => None,
            Input::Shared(_, pointer) => *pointer,
        }
    }

    /// Where it is in this process, for the kernel.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Input::Private(bytes) => bytes.as_ptr() as u64,
            Input::Shared(bytes, _) => bytes.address(),
        }
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        match self {
            Input::Private(bytes) => into.copy_from_slice(&bytes[offset as usize..][..into.len()]),
            Input::Shared(bytes, _) => bytes.read(offset, into),
        }
    }

    pub(crate) fn copy_to(&self, offset: u64, into: &SharedBytes, at: u64, bytes: u64) {
        match self {
            Input::Private(own) => into.write(at, &own[offset as usize..][..bytes as usize]),
            Input::Shared(own, _) => into.copy_from(at, own, offset, bytes),
        }
    }

    /// All of it, for the few bytes that fit into a slot.
    pub(crate) fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Input::Private(bytes) => Cow::Borrowed(bytes),
            Input::Shared(bytes, _) => Cow::Owned(to_vec(bytes)),
        }
    }

    /// Memory that operations in flight can own.
    pub(crate) fn memory(&self) -> SharedBytes {
        match self {
            Input::Private(bytes) => SharedBytes::adopt(bytes.to_vec()),
            Input::Shared(bytes, _) => bytes.clone(),
        }
    }
}

/// Where the bytes go that a member gets.
#[derive(Debug)]
pub(crate) enum Output<'a> {
    Private(&'a mut [u8]),
    /// Of this unit's segment; with a pointer if the other members may write it there.
    Shared(SharedBytes, Option<GlobalPtr<u8>>),
}

impl Output<'_> {
    /// Of a member that gets nothing.
    pub(crate) fn nothing() -> Output<'static> {
        Output::Private(&mut [])
    }

    pub(crate) fn pointer(&self) -> Option<GlobalPtr<u8>> {
        match self {
            Output::Private(_) => None,
            Output::Shared(_, pointer) => *pointer,
        }
    }

    pub(crate) fn write(&mut self, at: u64, from: &[u8]) {
        match self {
            Output::Private(bytes) => bytes[at as usize..][..from.len()].copy_from_slice(from),
            Output::Shared(bytes, _) => bytes.write(at, from),
        }
    }

    pub(crate) fn copy_from(&mut self, at: u64, from: &SharedBytes, offset: u64, bytes: u64) {
        match self {
            Output::Private(own) => from.read(offset, &mut own[at as usize..][..bytes as usize]),
            Output::Shared(own, _) => own.copy_from(at, from, offset, bytes),
        }
    }

    /// Copies out of the private memory of another process.
    pub(crate) fn copy_private(
        &mut self,
        at: u64,
        (pid, address): (i32, u64),
        bytes: u64,
    ) -> std::io::Result<()> {
        match self {
            Output::Private(own) => {
                let own = &mut own[at as usize..][..bytes as usize];
                samite_mem::copy::kernel::read_exact(pid, address, own)
            }
            Output::Shared(own, _) => {
                let mut done = 0;
                while done < bytes {
                    let place = (at + done, bytes - done);
                    match own.read_from_process(place.0, place.1, pid, address + done)? {
                        0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                        more => done += more,
                    }
                }
                Ok(())
            }
        }
    }

    pub(crate) fn copy_input(&mut self, at: u64, from: &Input<'_>, offset: u64, bytes: u64) {
        match (self, from) {
            (Output::Private(own), from) => {
                from.read(offset, &mut own[at as usize..][..bytes as usize]);
            }
            (Output::Shared(own, _), from) => from.copy_to(offset, own, at, bytes),
        }
    }

    /// Memory that operations in flight can own; what is received there comes back by
    /// [`Output::take_back`].
    pub(crate) fn memory(&self) -> SharedBytes {
        match self {
            Output::Private(bytes) => SharedBytes::adopt(vec![0; bytes.len()]),
            Output::Shared(bytes, _) => bytes.clone(),
        }
    }

    pub(crate) fn take_back(&mut self, memory: &SharedBytes) {
        if let Output::Private(bytes) = self {
            memory.read(0, bytes);
        }
    }
}

/// A private copy.
pub(super) fn to_vec(bytes: &SharedBytes) -> Vec<u8> {
    let mut copy = vec![0; bytes.len() as usize];
    bytes.read(0, &mut copy);
    copy
}
