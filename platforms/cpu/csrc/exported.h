// What is seen from outside of the library.
#pragma once
#define EXPORTED extern "C" __attribute__((visibility("default")))
