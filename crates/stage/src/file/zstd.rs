//! The codec `zstd` of Zarr stores, with a bound. The library's own allocates what a chunk claims
//! to contain, and ends the process if it cannot; this one allocates what the array says.

use std::any::Any;
use std::borrow::Cow;
use std::io::{Error, ErrorKind};
use std::sync::{Arc, Once};
use zarrs::array::codec::ZstdCodec;
use zarrs::array::codec::api::{
    ArrayBytesRaw, BytesRepresentation, BytesToBytesCodecTraits, Codec, CodecError,
    CodecMetadataOptions, CodecOptions, CodecRuntimePluginV2, CodecRuntimePluginV3, CodecTraits,
    CodecTraitsV2, CodecTraitsV3, PartialDecoderCapability, PartialEncoderCapability,
    RecommendedConcurrency, register_codec_v2, register_codec_v3,
};
use zarrs::metadata::Configuration;
use zarrs::plugin::{ExtensionName, ZarrVersion};

/// The codec of the library, except for decoding.
#[derive(Debug)]
struct Bounded(Arc<dyn BytesToBytesCodecTraits>);

/// Makes it the codec of all arrays that this process opens from now on.
pub(super) fn register() {
    static ONCE: Once = Once::new();
    let bounded = |codec| match codec {
        Codec::BytesToBytes(codec) => Codec::BytesToBytes(Arc::new(Bounded(codec))),
        other => other,
    };
    ONCE.call_once(|| {
        register_codec_v3(CodecRuntimePluginV3::new(
            |name| name == "zstd",
            move |metadata| <ZstdCodec as CodecTraitsV3>::create(metadata).map(bounded),
        ));
        register_codec_v2(CodecRuntimePluginV2::new(
            |name| name == "zstd",
            move |metadata| <ZstdCodec as CodecTraitsV2>::create(metadata).map(bounded),
        ));
    });
}

impl ExtensionName for Bounded {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        self.0.name(version)
    }
}

impl CodecTraits for Bounded {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(
        &self,
        version: ZarrVersion,
        options: &CodecMetadataOptions,
    ) -> Option<Configuration> {
        self.0.configuration(version, options)
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        self.0.partial_decoder_capability()
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        self.0.partial_encoder_capability()
    }
}

impl BytesToBytesCodecTraits for Bounded {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn recommended_concurrency(
        &self,
        decoded: &BytesRepresentation,
    ) -> Result<RecommendedConcurrency, CodecError> {
        self.0.recommended_concurrency(decoded)
    }

    fn encoded_representation(&self, decoded: &BytesRepresentation) -> BytesRepresentation {
        self.0.encoded_representation(decoded)
    }

    fn encode<'a>(
        &self,
        decoded: ArrayBytesRaw<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        self.0.encode(decoded, options)
    }

    fn decode<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        decoded: &BytesRepresentation,
        _: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let wrong = |kind| CodecError::from(Error::from(kind));
        let most = decoded.size().ok_or(wrong(ErrorKind::Unsupported))?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(most)
            .map_err(|_| wrong(ErrorKind::OutOfMemory))?;
        // More than the capacity is an error.
        zstd::bulk::Decompressor::new()?.decompress_to_buffer(&encoded, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}
