//! What a module exports and imports, read without compiling it.

use super::OWN_PAGES_MAX;
use super::cost::{self, Cost, FEATURES, unreadable};
use super::imports::{MODULE, OFFERED};
use crate::Refused;
use wasmparser::{
    CompositeInnerType, ExternalKind, FuncType, FuncValidatorAllocations, Import, MemoryType,
    Parser, Payload, TypeRef, ValType, ValidPayload, Validator,
};

/// A module that has been validated and may be compiled.
pub(super) struct Known {
    /// The functions that it exports with the type of an entry.
    pub(super) entries: Vec<String>,
    /// Pages that it has for itself.
    pub(super) own: u64,
}

/// Returns the names of the functions that a module exports with the type of an entry, `(i32, i32)
/// -> i32`, in its order.
///
/// # Errors
/// [`Refused::Import`]: it imports what is not offered. [`Refused::Invalid`]: it is no valid module,
/// or uses what is not offered; or imports a function as another type than it has; or has a memory
/// of its own, or a function that runs when it starts, which no limit of a call would hold for; or
/// takes the compiler too much memory or time.
pub fn entries(code: &[u8]) -> Result<Vec<String>, Refused> {
    Ok(known(code)?.entries)
}

/// Validates a module, without compiling it.
///
/// # Errors
/// As [`entries`].
pub(super) fn known(code: &[u8]) -> Result<Known, Refused> {
    let mut validator = Validator::new_with_features(FEATURES);
    let mut allocations = FuncValidatorAllocations::default();
    let mut read = Read::default();
    for payload in Parser::new(0).parse_all(code) {
        let payload = payload.map_err(unreadable)?;
        read.check_length(&payload)?;
        if let ValidPayload::Func(function, body) =
            validator.payload(&payload).map_err(unreadable)?
        {
            let mut function = function.into_validator(allocations);
            read.cost.add_function(&mut function, &body)?;
            allocations = function.into_allocations();
        }
        read.section(payload)?;
    }
    Ok(read.finish())
}

/// What has been read of a module.
#[derive(Default)]
struct Read {
    cost: Cost,
    /// Each type, and what it takes to enter such a function.
    types: Vec<(FuncType, u64)>,
    /// The types of all functions, of which the first ones are imported.
    functions: Vec<u32>,
    exports: Vec<(String, u32)>,
    own: u64,
}

impl Read {
    /// Checks how many items a section has, before they are read.
    fn check_length(&self, payload: &Payload<'_>) -> Result<(), Refused> {
        let functions = self.functions.len() as u64;
        let (of, items) = match payload {
            Payload::TypeSection(section) => ("types", section.count()),
            Payload::ImportSection(section) => ("imports", section.count()),
            Payload::FunctionSection(section) => {
                let items = functions + u64::from(section.count());
                return cost::check_items("functions", items);
            }
            Payload::TableSection(section) => ("tables", section.count()),
            Payload::GlobalSection(section) => ("globals", section.count()),
            Payload::ExportSection(section) => ("exports", section.count()),
            Payload::ElementSection(section) => ("elements", section.count()),
            Payload::DataSection(section) => ("data segments", section.count()),
            _ => return Ok(()),
        };
        cost::check_items(of, u64::from(items))
    }

    /// Reads a section that has been validated.
    fn section(&mut self, payload: Payload<'_>) -> Result<(), Refused> {
        match payload {
            Payload::TypeSection(section) => {
                for group in section {
                    for of in group.map_err(unreadable)?.into_types() {
                        let CompositeInnerType::Func(of) = of.composite_type.inner else {
                            return Err(Refused::Invalid("it has types of objects".into()));
                        };
                        self.cost.add_type(&of)?;
                        let entering = cost::entering(&of);
                        self.types.push((of, entering));
                    }
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    self.import(&import.map_err(unreadable)?)?;
                }
            }
            Payload::FunctionSection(section) => {
                for of in section {
                    let of = of.map_err(unreadable)?;
                    let entering = self.types.get(of as usize).map_or(0, |(_, cost)| *cost);
                    self.cost.add_entrances(entering)?;
                    self.functions.push(of);
                }
            }
            Payload::MemorySection(section) if section.count() > 0 => {
                return Err(Refused::Invalid(
                    "it has a memory of its own: import `samite.memory` (wasm-ld --import-memory)"
                        .into(),
                ));
            }
            Payload::GlobalSection(section) => self.cost.add_start(u64::from(section.count()))?,
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.map_err(unreadable)?;
                    if export.kind == ExternalKind::Func {
                        self.exports.push((export.name.to_owned(), export.index));
                    }
                }
            }
            Payload::ElementSection(section) => {
                let mut all = 0;
                for element in section {
                    all += 1 + match element.map_err(unreadable)?.items {
                        wasmparser::ElementItems::Functions(items) => u64::from(items.count()),
                        wasmparser::ElementItems::Expressions(_, items) => u64::from(items.count()),
                    };
                }
                cost::check_items("elements", all)?;
                self.cost.add_start(all)?;
            }
            Payload::DataSection(section) => self.cost.add_start(u64::from(section.count()))?,
            Payload::StartSection { .. } => {
                return Err(Refused::Invalid("it has a start function".into()));
            }
            _ => {}
        }
        Ok(())
    }

    fn import(&mut self, import: &Import<'_>) -> Result<(), Refused> {
        match import.ty {
            TypeRef::Func(of) => {
                self.functions.push(of);
                check_function(import, self.types.get(of as usize).map(|(of, _)| of))
            }
            TypeRef::Memory(memory) if (import.module, import.name) == (MODULE, "memory") => {
                self.own = memory.initial;
                check_memory(&memory)
            }
            _ => Err(not_offered(import)),
        }
    }

    fn finish(self) -> Known {
        let is_entry = |index: u32| {
            let of = self.functions.get(index as usize);
            of.and_then(|of| self.types.get(*of as usize))
                .is_some_and(|(of, _)| is_entry(of))
        };
        let entries = (self.exports.into_iter())
            .filter(|(_, index)| is_entry(*index))
            .map(|(name, _)| name)
            .collect();
        let own = self.own;
        Known { entries, own }
    }
}

fn not_offered(import: &Import<'_>) -> Refused {
    Refused::Import(format!("{}.{}", import.module, import.name))
}

/// Checks that an imported function is offered, with the type as which it is imported.
fn check_function(import: &Import<'_>, of: Option<&FuncType>) -> Result<(), Refused> {
    let mut offered = OFFERED.iter().filter(|_| import.module == MODULE);
    let offered = offered.find(|(name, ..)| *name == import.name);
    let Some((name, parameters, results)) = offered else {
        return Err(not_offered(import));
    };
    match of {
        Some(of) if (of.params(), of.results()) == (*parameters, *results) => Ok(()),
        _ => Err(Refused::Invalid(format!(
            "it imports {MODULE}.{name} as {}, which is {}",
            of.map_or_else(String::new, |of| shown(of.params(), of.results())),
            shown(parameters, results)
        ))),
    }
}

fn shown(parameters: &[ValType], results: &[ValType]) -> String {
    let list = |types: &[ValType]| {
        let types: Vec<String> = types.iter().map(ValType::to_string).collect();
        format!("({})", types.join(", "))
    };
    format!("{} -> {}", list(parameters), list(results))
}

fn check_memory(memory: &MemoryType) -> Result<(), Refused> {
    let is_plain = !memory.memory64 && !memory.shared;
    if !is_plain || memory.page_size_log2.is_some() || memory.initial > OWN_PAGES_MAX {
        return Err(Refused::Invalid(format!(
            "its memory is not a plain one of at most {OWN_PAGES_MAX} pages"
        )));
    }
    if memory.maximum.is_some() {
        return Err(Refused::Invalid(
            "its memory has a maximum: the granted segments do not fit".into(),
        ));
    }
    Ok(())
}

fn is_entry(of: &FuncType) -> bool {
    of.params() == [ValType::I32; 2] && of.results() == [ValType::I32]
}
