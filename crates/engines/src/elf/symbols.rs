//! What a shared object exports, read without loading it.

use super::header::machine;
use super::load::BIND;
use crate::Refused;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol};
use std::collections::HashSet;

/// Checks that a shared object, of any machine, is complete and exports these entries. Nothing of
/// it is loaded. Of one without a table of symbols, which linkers always write, only the headers
/// are checked.
///
/// # Errors
/// [`Refused::Invalid`], [`Refused::Entry`].
pub fn check(code: &[u8], entries: &[String]) -> Result<(), Refused> {
    machine(code)?;
    let invalid = |error: object::Error| Refused::Invalid(error.to_string());
    let file = ElfFile64::<Endianness>::parse(code).map_err(invalid)?;
    if file.elf_header().e_shnum(file.endian()) == 0 {
        return Ok(());
    }
    let defined = file.dynamic_symbols().filter(ObjectSymbol::is_definition);
    let names: HashSet<&[u8]> = defined.filter_map(|of| of.name_bytes().ok()).collect();
    if !names.contains(BIND.as_bytes()) {
        return Err(Refused::Invalid(format!(
            "it does not export `{BIND}`: include samite_kernel.h, and compile it with -DSAMITE_ELF"
        )));
    }
    let missing = (entries.iter()).find(|entry| !names.contains(entry.as_bytes()));
    missing.map_or(Ok(()), |entry| Err(Refused::Entry(entry.clone())))
}
