//! Endpoints that few clients call: tokens in and out, render and derender, the development mode, the pages
//! about the API and `/tokenizer_info`. The path of every other request is in [`pipeline`](crate::request::pipeline).

pub(super) mod derender;
pub(super) mod dev;
pub(super) mod pages;
pub(super) mod render;
pub(super) mod tokenizer_info;
pub(super) mod variants;
