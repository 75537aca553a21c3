//! Listings.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use s3s::dto::*;
use s3s::xml::is_unfit;
use s3s::{S3Request, S3Response, S3Result};
use steadfast_store::{ListEntry, ListPage, ListQuery};

use crate::attributes::{page_size, url_encode};
use crate::conditions::{etag, timestamp};
use crate::error::{invalid_argument, store_error};
use crate::handler::{Handler, owner};

/// S3's limit on the entries of a page.
pub(crate) const PAGE_MAX: i32 = 1000;

/// The version of every object, in a bucket without versioning.
const NULL_VERSION: &str = "null";

/// The encoding of names in an answer.
#[derive(Clone, Copy)]
pub(crate) struct Encoding(bool);

impl Encoding {
    pub(crate) fn read(encoding: Option<&EncodingType>) -> S3Result<Self> {
        match encoding.map(EncodingType::as_str) {
            None => Ok(Self(false)),
            Some(EncodingType::URL) => Ok(Self(true)),
            Some(_) => Err(invalid_argument("Invalid Encoding Method specified in Request")),
        }
    }

    pub(crate) fn name(self, name: String) -> String {
        if self.0 { url_encode(&name) } else { name }
    }

    /// Refuses names that XML cannot carry unencoded: no parser would accept the answer, and a
    /// client that did not request the encoding does not decode it.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn check<'a>(self, names: impl IntoIterator<Item = &'a String>) -> S3Result<()> {
        match names.into_iter().find(|name| !self.0 && name.contains(is_unfit)) {
            None => Ok(()),
            Some(name) => Err(invalid_argument(format!(
                "The name {} has characters that XML cannot carry. Ask for the listing with encoding-type=url.",
                url_encode(name)
            ))),
        }
    }

    pub(crate) fn prefixes(self, prefixes: Vec<String>) -> Option<CommonPrefixList> {
        let list: Vec<CommonPrefix> =
            prefixes.into_iter().map(|p| CommonPrefix { prefix: Some(self.name(p)) }).collect();
        (!list.is_empty()).then_some(list)
    }
}

fn object(entry: ListEntry, encoding: Encoding, with_owner: bool) -> Object {
    Object {
        checksum_algorithm: (!entry.checksum_algorithms.is_empty()).then(|| {
            entry.checksum_algorithms.into_iter().map(|a| ChecksumAlgorithm::from(a.to_ascii_uppercase())).collect()
        }),
        checksum_type: (!entry.checksum_type.is_empty()).then(|| ChecksumType::from(entry.checksum_type)),
        e_tag: Some(etag(&entry.etag)),
        key: Some(encoding.name(entry.key)),
        last_modified: Some(timestamp(entry.modified_ms)),
        owner: with_owner.then(owner),
        restore_status: None,
        size: i64::try_from(entry.size).ok(),
        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
    }
}

/// One page; empty and final when the request asks for no entries.
fn page(handler: &Handler, bucket: &str, query: &ListQuery, encoding: Encoding) -> S3Result<ListPage> {
    // The answer repeats these parameters.
    encoding.check([&query.prefix, &query.delimiter, &query.start_after])?;
    if query.limit == 0 {
        handler.store.buckets().get(bucket).map_err(store_error)?;
        return Ok(ListPage::default());
    }
    let page = handler.store.contents(bucket).objects(query).map_err(store_error)?;
    encoding.check(page.objects.iter().map(|o| &o.key).chain(&page.prefixes))?;
    Ok(page)
}

pub(crate) async fn v1(handler: &Handler, req: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
    let input = req.input;
    let encoding = Encoding::read(input.encoding_type.as_ref())?;
    let limit = page_size(input.max_keys, PAGE_MAX, "maxKeys")?;
    let query = ListQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        start_after: input.marker.clone().unwrap_or_default(),
        limit: limit as usize,
    };
    let page = page(handler, &input.bucket, &query, encoding)?;
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.name(query.prefix)),
        marker: Some(encoding.name(query.start_after)),
        max_keys: Some(limit),
        is_truncated: Some(page.next.is_some()),
        next_marker: page.next.map(|next| encoding.name(next)),
        contents: Some(page.objects.into_iter().map(|entry| object(entry, encoding, true)).collect()),
        common_prefixes: encoding.prefixes(page.prefixes),
        delimiter: input.delimiter.filter(|d| !d.is_empty()).map(|d| encoding.name(d)),
        encoding_type: input.encoding_type,
        request_charged: None,
    }))
}

pub(crate) async fn v2(
    handler: &Handler,
    req: S3Request<ListObjectsV2Input>,
) -> S3Result<S3Response<ListObjectsV2Output>> {
    let input = req.input;
    let encoding = Encoding::read(input.encoding_type.as_ref())?;
    let limit = page_size(input.max_keys, PAGE_MAX, "maxKeys")?;
    let start_after = match &input.continuation_token {
        Some(token) => decode_token(token)?,
        None => input.start_after.clone().unwrap_or_default(),
    };
    let query = ListQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        start_after,
        limit: limit as usize,
    };
    let page = page(handler, &input.bucket, &query, encoding)?;
    let with_owner = input.fetch_owner.unwrap_or(false);
    let count = page.objects.len() + page.prefixes.len();
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encoding.name(query.prefix)),
        max_keys: Some(limit),
        key_count: i32::try_from(count).ok(),
        continuation_token: input.continuation_token,
        is_truncated: Some(page.next.is_some()),
        next_continuation_token: page.next.map(|next| URL_SAFE_NO_PAD.encode(next)),
        contents: Some(page.objects.into_iter().map(|entry| object(entry, encoding, with_owner)).collect()),
        common_prefixes: encoding.prefixes(page.prefixes),
        delimiter: input.delimiter.filter(|d| !d.is_empty()).map(|d| encoding.name(d)),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(|s| encoding.name(s)),
        request_charged: None,
    }))
}

/// The only version of an object, as S3 lists it for a bucket without versioning.
fn version(object: Object) -> ObjectVersion {
    ObjectVersion {
        checksum_algorithm: object.checksum_algorithm,
        checksum_type: object.checksum_type,
        e_tag: object.e_tag,
        is_latest: Some(true),
        key: object.key,
        last_modified: object.last_modified,
        owner: object.owner,
        restore_status: None,
        size: object.size,
        storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
        version_id: Some(NULL_VERSION.to_owned()),
    }
}

/// Lists every object once. An object has one version, so a page continues after `key-marker`
/// whatever `version-id-marker` is.
pub(crate) async fn versions(
    handler: &Handler,
    req: S3Request<ListObjectVersionsInput>,
) -> S3Result<S3Response<ListObjectVersionsOutput>> {
    let input = req.input;
    let encoding = Encoding::read(input.encoding_type.as_ref())?;
    let limit = page_size(input.max_keys, PAGE_MAX, "maxKeys")?;
    let query = ListQuery {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        start_after: input.key_marker.clone().filter(|marker| !marker.is_empty()).unwrap_or_default(),
        limit: limit as usize,
    };
    let version_marker = input.version_id_marker.filter(|marker| !marker.is_empty());
    if version_marker.is_some() && query.start_after.is_empty() {
        return Err(invalid_argument("A version-id marker cannot be specified without a key marker."));
    }
    let page = page(handler, &input.bucket, &query, encoding)?;
    let next_is_object = page.objects.last().is_some_and(|last| Some(&last.key) == page.next.as_ref());
    let versions = page.objects.into_iter().map(|entry| version(object(entry, encoding, true))).collect();
    Ok(S3Response::new(ListObjectVersionsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.name(query.prefix)),
        key_marker: Some(encoding.name(query.start_after)),
        version_id_marker: Some(version_marker.unwrap_or_default()),
        max_keys: Some(limit),
        is_truncated: Some(page.next.is_some()),
        next_version_id_marker: page.next.as_ref().filter(|_| next_is_object).map(|_| NULL_VERSION.to_owned()),
        next_key_marker: page.next.map(|next| encoding.name(next)),
        versions: Some(versions),
        common_prefixes: encoding.prefixes(page.prefixes),
        delimiter: input.delimiter.filter(|d| !d.is_empty()).map(|d| encoding.name(d)),
        encoding_type: input.encoding_type,
        delete_markers: None,
        request_charged: None,
    }))
}

fn decode_token(token: &str) -> S3Result<String> {
    URL_SAFE_NO_PAD
        .decode(token)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .filter(|key| !key.is_empty())
        .ok_or_else(|| invalid_argument("The continuation token provided is incorrect"))
}
