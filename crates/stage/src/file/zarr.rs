//! Steps as Zarr (version 3), which other programs read and write: Python's `zarr` and `xarray`,
//! Julia, C++.
//!
//! ```text
//!   FOLDER/              group; attribute `samite_stream`: the name of the stream
//!     step-0/            group; its attributes are those of the step
//!       u/               array: shape, type and attributes of the variable; chunks
//!       v/
//!     step-1/
//! ```
//!
//! A step exists when the metadata of its group do: they are written last. A chunk is as large as
//! the variable's first block, so that each block of a regular decomposition is one chunk, and
//! writing needs no reading. Dimensions are named by their position and extent, `d0_256`: `xarray`
//! requires names, and considers equal names of the variables of a step the same dimension. Nothing
//! is compressed. Any array of a Zarr store can be read, compressed or not (zstd, gzip, sharding),
//! if its type is in [`Dtype`].
//!
//! Not guaranteed: points that no rank wrote are read as the array's fill value (0 in ours),
//! without an error; an array without dimensions cannot be read; one process writes a step, with
//! the parts of all ranks. A reader takes as much memory as the metadata and the chunks of a store
//! claim, except for zstd: chunks with gzip may grow a thousand times, so read only stores that you
//! trust.

use super::error::{FileError, check_same, io};
use super::writer::{Content, check};
use crate::protocol::{Attribute, Step, Variable};
use crate::space::Dims;
use crate::{Dtype, Element, Region, SpaceError};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zarrs::array::{
    Array, ArrayBuilder, ArrayBytes, ArrayMetadataOptions, ArraySubset, DataType, FillValue,
    data_type,
};
use zarrs::filesystem::FilesystemStore;
use zarrs::group::{Group, GroupBuilder};
use zarrs::storage::{StoreKey, StorePrefix, WritableStorageTraits};

const STREAM: &str = "samite_stream";
const STEP: &str = "step-";

/// A Zarr store in a folder.
#[derive(Clone, Debug)]
pub struct Zarr {
    folder: PathBuf,
    store: Arc<FilesystemStore>,
}

impl Zarr {
    /// Opens a store, which need not exist yet.
    ///
    /// # Errors
    /// The path cannot be the folder of a store.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        super::zstd::register();
        let store = FilesystemStore::new(folder).map_err(foreign(folder))?;
        Ok(Zarr {
            folder: folder.to_owned(),
            store: Arc::new(store),
        })
    }

    /// Sets the name of the stream whose steps are written here.
    ///
    /// # Errors
    /// The system refuses.
    pub fn begin(&self, stream: &str) -> Result<(), FileError> {
        let stream = [(STREAM.to_owned(), Value::from(stream))];
        self.group("/", stream.into_iter().collect())
    }

    /// Writes a step, given the parts of all ranks. Removes an older step of that number first.
    ///
    /// # Errors
    /// Blocks that do not match their layout; ranks that do not agree; the system refuses.
    pub fn write(&self, step: Step, parts: &[Content<'_>]) -> Result<(), FileError> {
        parts.iter().try_for_each(check)?;
        self.remove(step)?;
        let mut arrays: BTreeMap<&str, (u32, &Variable, Array<FilesystemStore>)> = BTreeMap::new();
        for (rank, part) in (0..).zip(parts) {
            let mut bytes = part.blocks.iter();
            for variable in &part.layout.variables {
                let name = variable.name.as_str();
                if !arrays.contains_key(name) {
                    arrays.insert(name, (rank, variable, self.new_array(step, variable)?));
                }
                let (first, known, array) = &arrays[name];
                let before = (*first, known.dtype, &known.shape);
                check_same(name, before, (rank, variable.dtype, &variable.shape))?;
                for (block, bytes) in variable.blocks.iter().zip(&mut bytes) {
                    array
                        .store_array_subset(&subset(&block.region), ArrayBytes::new_flen(*bytes))
                        .map_err(foreign(&self.folder.join(array.path().as_str())))?;
                }
            }
        }
        // The first rank that has set an attribute comes last, and stays.
        let attributes = parts.iter().flat_map(|part| part.attributes).rev();
        self.group(&path(step), attributes.map(to_json).collect())
    }

    /// Removes the steps from `first` on, which an older run left, before a new one writes them.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove_from(&self, first: Step) -> Result<(), FileError> {
        let mut steps = self.steps()?.into_iter();
        steps.try_for_each(|step| match step >= first {
            true => self.remove(step),
            false => Ok(()),
        })
    }

    fn remove(&self, step: Step) -> Result<(), FileError> {
        let name = format!("{STEP}{step}/");
        let place = self.folder.join(&name);
        // The metadata that make the step exist go first.
        let metadata = StoreKey::new(format!("{name}zarr.json")).map_err(foreign(&place))?;
        self.store.erase(&metadata).map_err(foreign(&place))?;
        let all = StorePrefix::new(&name).map_err(foreign(&place))?;
        self.store.erase_prefix(&all).map_err(foreign(&place))
    }

    /// Returns the steps of the store, in increasing order.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn steps(&self) -> Result<Vec<Step>, FileError> {
        let root = Group::open(self.store.clone(), "/").map_err(foreign(&self.folder))?;
        let groups = root.child_group_paths().map_err(foreign(&self.folder))?;
        let number = |path: &str| {
            path.trim_start_matches('/')
                .strip_prefix(STEP)?
                .parse()
                .ok()
        };
        let mut steps: Vec<Step> = groups
            .iter()
            .filter_map(|path| number(path.as_str()))
            .collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Returns the names of the arrays of a step.
    ///
    /// # Errors
    /// The step does not exist.
    pub fn names(&self, step: Step) -> Result<Vec<String>, FileError> {
        let (group, place) = self.step(step)?;
        let paths = group.child_array_paths().map_err(foreign(&place))?;
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut names: Vec<String> = paths.iter().map(|path| name(path.as_str())).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Returns those attributes of a step that [`Attribute`] can represent.
    ///
    /// # Errors
    /// The step does not exist.
    pub fn attributes(&self, step: Step) -> Result<Vec<(String, Attribute)>, FileError> {
        Ok(said(self.step(step)?.0.attributes()))
    }

    fn step(&self, step: Step) -> Result<(Group<FilesystemStore>, PathBuf), FileError> {
        let path = path(step);
        let place = self.folder.join(path.trim_start_matches('/'));
        let group = Group::open(self.store.clone(), &path).map_err(foreign(&place))?;
        Ok((group, place))
    }

    /// Returns an array of a step.
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn variable(&self, step: Step, name: &str) -> Result<ZarrArray, FileError> {
        self.array(&format!("{}/{name}", path(step)))
    }

    /// Returns any array of the store, by its path within it.
    ///
    /// # Errors
    /// No such array; one with a type that is not in [`Dtype`], without dimensions, or whose bytes
    /// exceed 64 bits.
    pub fn array(&self, path: &str) -> Result<ZarrArray, FileError> {
        let path = format!("/{}", path.trim_matches('/'));
        let place = self.folder.join(path.trim_start_matches('/'));
        let array = Array::open(self.store.clone(), &path).map_err(foreign(&place))?;
        let is = array.data_type();
        let dtype = Dtype::ALL
            .into_iter()
            .find(|dtype| data_type_of(*dtype) == *is);
        let dtype = dtype.ok_or_else(|| FileError::Foreign {
            path: place.clone(),
            what: format!(
                "elements of type {is}, where integers and floats of 8 to 64 bits are read"
            ),
        })?;
        let whole = Region::whole(array.shape())?;
        // The library does not check its counts of elements and bytes for overflow.
        whole.bytes(dtype.bytes())?;
        let first = vec![0; whole.dims()];
        if let Ok(chunk) = array.chunk_shape(&first) {
            let chunk: Vec<u64> = chunk.iter().map(|length| length.get()).collect();
            Region::whole(&chunk)?.bytes(dtype.bytes())?;
        }
        Ok(ZarrArray {
            path: place,
            dtype,
            whole,
            array,
        })
    }

    fn group(&self, path: &str, attributes: Map<String, Value>) -> Result<(), FileError> {
        let place = self.folder.join(path.trim_start_matches('/'));
        let group = GroupBuilder::new()
            .attributes(attributes)
            .build(self.store.clone(), path)
            .map_err(foreign(&place))?;
        group.store_metadata().map_err(foreign(&place))
    }

    fn new_array(
        &self,
        step: Step,
        variable: &Variable,
    ) -> Result<Array<FilesystemStore>, FileError> {
        let path = format!("{}/{}", path(step), variable.name);
        let place = self.folder.join(path.trim_start_matches('/'));
        // A chunk has at least one point, however small the array is.
        let first = variable.blocks.first().map(|block| block.region.shape());
        let chunk = first.unwrap_or_else(|| variable.shape.clone());
        let chunk: Vec<u64> = chunk.iter().map(|&length| length.max(1)).collect();
        let fill = FillValue::from(vec![0; variable.dtype.bytes() as usize]);
        let mut builder = ArrayBuilder::new(
            variable.shape.to_vec(),
            chunk,
            data_type_of(variable.dtype),
            fill,
        );
        builder.attributes(variable.attributes.iter().map(to_json).collect());
        let extents = variable.shape.iter().enumerate();
        builder.dimension_names(Some(
            extents.map(|(dim, extent)| format!("d{dim}_{extent}")),
        ));
        let array = builder
            .build(self.store.clone(), &path)
            .map_err(foreign(&place))?;
        // Without an attribute that names the library.
        let plain = ArrayMetadataOptions::default().with_include_zarrs_metadata(false);
        array.store_metadata_opt(&plain).map_err(foreign(&place))?;
        Ok(array)
    }
}

/// An array of a Zarr store.
#[derive(Debug)]
pub struct ZarrArray {
    path: PathBuf,
    dtype: Dtype,
    whole: Region,
    array: Array<FilesystemStore>,
}

impl ZarrArray {
    /// Returns the type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns its shape.
    pub fn shape(&self) -> Dims {
        self.whole.shape()
    }

    /// Returns those of its attributes that [`Attribute`] can represent.
    pub fn attributes(&self) -> Vec<(String, Attribute)> {
        said(self.array.attributes())
    }

    /// Reads a box as a dense, row-major array.
    ///
    /// # Errors
    /// Another type; a box outside the array, or larger than memory; the store's error for damaged
    /// chunks.
    pub fn read<T: Element>(&self, region: &Region) -> Result<Vec<T>, FileError> {
        if self.dtype != T::DTYPE {
            return Err(FileError::Type {
                name: self.path.display().to_string(),
                is: self.dtype,
                asked: T::DTYPE,
            });
        }
        if !self.whole.contains(region) {
            return Err(SpaceError::Outside {
                asked: region.clone(),
                whole: self.whole.clone(),
            }
            .into());
        }
        // The library aborts the process if an allocation fails.
        let needed = usize::try_from(region.bytes(self.dtype.bytes())?).unwrap_or(usize::MAX);
        Vec::<u8>::new().try_reserve_exact(needed).map_err(|_| {
            let no_memory = std::io::ErrorKind::OutOfMemory.into();
            io("find memory for a box of", &self.path)(no_memory)
        })?;
        let read: ArrayBytes<'static> = self
            .array
            .retrieve_array_subset(&subset(region))
            .map_err(foreign(&self.path))?;
        let bytes = read.into_fixed().map_err(foreign(&self.path))?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }
}

fn path(step: Step) -> String {
    format!("/{STEP}{step}")
}

fn subset(region: &Region) -> ArraySubset {
    let corners = region.lower().iter().zip(region.upper());
    let ranges: Vec<Range<u64>> = corners.map(|(lower, upper)| *lower..*upper).collect();
    ArraySubset::new_with_ranges(&ranges)
}

fn foreign<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> FileError {
    let path = path.to_owned();
    move |error| FileError::Foreign {
        path,
        what: error.to_string(),
    }
}

fn data_type_of(dtype: Dtype) -> DataType {
    match dtype {
        Dtype::I8 => data_type::int8(),
        Dtype::I16 => data_type::int16(),
        Dtype::I32 => data_type::int32(),
        Dtype::I64 => data_type::int64(),
        Dtype::U8 => data_type::uint8(),
        Dtype::U16 => data_type::uint16(),
        Dtype::U32 => data_type::uint32(),
        Dtype::U64 => data_type::uint64(),
        Dtype::F32 => data_type::float32(),
        Dtype::F64 => data_type::float64(),
    }
}

/// Returns those attributes that an [`Attribute`] can represent.
fn said(attributes: &Map<String, Value>) -> Vec<(String, Attribute)> {
    let said = attributes.iter();
    said.filter_map(|(name, value)| Some((name.clone(), from_json(value)?)))
        .collect()
}

fn to_json((name, attribute): &(String, Attribute)) -> (String, Value) {
    let value = match attribute {
        Attribute::Text(text) => text.as_str().into(),
        Attribute::Integer(number) => (*number).into(),
        Attribute::Real(number) => (*number).into(),
        Attribute::Integers(numbers) => numbers.clone().into(),
        Attribute::Reals(numbers) => numbers.clone().into(),
    };
    (name.clone(), value)
}

fn from_json(value: &Value) -> Option<Attribute> {
    Some(match value {
        Value::String(text) => Attribute::Text(text.clone()),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Attribute::Integer(number),
            None => Attribute::Real(number.as_f64()?),
        },
        Value::Array(values) => match values.iter().map(Value::as_i64).collect() {
            Some(numbers) => Attribute::Integers(numbers),
            None => Attribute::Reals(values.iter().map(Value::as_f64).collect::<Option<_>>()?),
        },
        _ => return None,
    })
}
