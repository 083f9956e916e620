// Visibility of the library's symbols.
#pragma once
#define EXPORTED extern "C" __attribute__((visibility("default")))
